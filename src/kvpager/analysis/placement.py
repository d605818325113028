"""The notes' scores in closed form: EMA, placement score P, and the two prefetch priorities of note 000.

The policies that use them on recordings are in `kvpager.policies`; here is the arithmetic that the notes' own
examples can be held against. Sources: note 000 §11 (EMA), §12 (P and its cuts, prefetch).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "decay_factor",
    "distance_priority",
    "ema_fixed_point",
    "ema_half_life_steps",
    "ema_needed",
    "ema_scores",
    "order_difference",
    "placement_score",
    "prefetch_blend",
]

Floats = NDArray[np.float64]


def decay_factor(alpha: ArrayLike) -> Floats:
    """What is kept of an EMA in one step: 1 − alpha. Alpha itself is the smoothing weight."""
    return np.asarray(1.0 - np.asarray(alpha, dtype=np.float64))


def ema_half_life_steps(alpha: ArrayLike) -> Floats:
    """Steps after which an observation's weight has halved: ln ½ ÷ ln(1 − alpha)."""
    return np.asarray(np.log(0.5) / np.log(decay_factor(alpha)), dtype=np.float64)


def ema_scores(observed: ArrayLike, alpha: float, start: float = 0.0) -> Floats:
    """EMA after each observation: score ← alpha · observed + (1 − alpha) · score.

    Parameters
    ----------
    observed : array_like [steps]
        Attention mass of one position, step by step.
    alpha : float
        Smoothing weight, in (0, 1].
    start : float, optional
        Score before the first observation.

    Returns
    -------
    float64 array [steps]
        The scores.
    """
    scores, score = [], start
    for mass in np.asarray(observed, dtype=np.float64):
        score = alpha * mass + (1.0 - alpha) * score
        scores.append(score)
    return np.asarray(scores, dtype=np.float64)


def ema_fixed_point(observed: ArrayLike) -> Floats:
    """Where an EMA settles on average if `observed` repeats for ever: their mean, whatever alpha is."""
    return np.asarray(np.mean(np.asarray(observed, dtype=np.float64), axis=-1), dtype=np.float64)


def placement_score(recency: ArrayLike, ema: ArrayLike, anchor: ArrayLike, weights: ArrayLike) -> Floats:
    """Placement score P = w_R · R + w_E · E + w_N · N.

    Parameters
    ----------
    recency, ema, anchor : array_like
        R, E and N of a position, each meant to lie in [0, 1].
    weights : array_like [3]
        w_R, w_E, w_N.

    Returns
    -------
    float64 array
        P; in [0, 1] only if its three parts are.
    """
    w_recency, w_ema, w_anchor = np.asarray(weights, dtype=np.float64)
    parts = [np.asarray(part, dtype=np.float64) for part in (recency, ema, anchor)]
    return np.asarray(w_recency * parts[0] + w_ema * parts[1] + w_anchor * parts[2], dtype=np.float64)


def ema_needed(cut: ArrayLike, recency: ArrayLike, anchor: ArrayLike, weights: ArrayLike) -> Floats:
    """E with which P just reaches `cut`; above 1 it cannot be reached. Parameters as `placement_score`."""
    w_recency, w_ema, w_anchor = np.asarray(weights, dtype=np.float64)
    rest = w_recency * np.asarray(recency, dtype=np.float64) + w_anchor * np.asarray(anchor, dtype=np.float64)
    return np.asarray((np.asarray(cut, dtype=np.float64) - rest) / w_ema, dtype=np.float64)


def distance_priority(distance: ArrayLike, scale: ArrayLike) -> Floats:
    """1 ÷ (1 + distance/scale), distance in positions: the note's rope factor, which holds nothing of RoPE."""
    return np.asarray(1.0 / (1.0 + np.asarray(distance, dtype=np.float64) / np.asarray(scale, dtype=np.float64)))


def prefetch_blend(distance: ArrayLike, ema: ArrayLike, scale: ArrayLike, weights: ArrayLike) -> Floats:
    """w_d · `distance_priority` + w_e · E: the note's other prefetch priority; `weights` is [w_d, w_e]."""
    w_distance, w_ema = np.asarray(weights, dtype=np.float64)
    near = distance_priority(distance, scale)
    return np.asarray(w_distance * near + w_ema * np.asarray(ema, dtype=np.float64), dtype=np.float64)


def order_difference(current: float, positions: ArrayLike) -> Floats:
    """Positions whose rank by RoPE distance |m − p| differs from their rank by age m − p, for past positions.

    Parameters
    ----------
    current : float
        The position m that is being written.
    positions : array_like [n]
        Past positions p <= m.

    Returns
    -------
    float64 array
        How many of them rank differently: none, since both are the same number.
    """
    past = np.asarray(positions, dtype=np.float64)
    by_distance, by_age = np.argsort(np.abs(current - past)), np.argsort(current - past)
    return np.asarray((by_distance != by_age).sum(), dtype=np.float64)
