"""Fits and their intervals: tuples of what a score knew and what was asked for next, a logistic fit, trials of values.

Steps that follow one another are not independent, so every interval resamples blocks of 16 steps. It holds for the texts
that were recorded; how far it holds for others, only held-out texts can say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.replay.linear import Features

__all__ = [
    "BLOCK_STEPS", "Trials", "Tuples", "fit_logistic", "logistic_interval", "mean_interval", "quantile_interval", "sample_tuples",
    "simplex", "sums_by_block",
]  # fmt: skip

BLOCK_STEPS = 16
"""Steps that are resampled together."""

Floats = NDArray[np.float64]


def simplex(parts: int) -> Floats:
    """All weightings of three features in steps of ``1 / parts``, float64 [(parts + 1)(parts + 2) / 2, 3]."""
    points = [(a, b, parts - a - b) for a in range(parts + 1) for b in range(parts + 1 - a)]
    return np.array(points, np.float64) / parts


class Tuples(NamedTuple):
    """What was known of a unit at a step's end, and when it was asked for next; one row a sampled unit and step.

    Attributes
    ----------
    features : float64 [n, 3]
        R, E and N.
    wait : int64 [n]
        Steps until the next access; a large number if there is none.
    left : int64 [n]
        Steps that the recording goes on.
    block : int64 [n]
        Which 16 steps of which text.
    """

    features: Floats
    wait: NDArray[np.int64]
    left: NDArray[np.int64]
    block: NDArray[np.int64]

    def labels(self, horizon: int) -> tuple[Tuples, NDArray[np.bool_]]:
        """Return the rows that see `horizon` steps ahead, and which of them are asked for within it."""
        seen = self.left >= horizon
        rows = Tuples(self.features[seen], self.wait[seen], self.left[seen], self.block[seen])
        return rows, rows.wait <= horizon

    @staticmethod
    def join(parts: Sequence[Tuples]) -> Tuples:
        """Put several texts' rows together; their blocks stay apart."""
        first = np.cumsum([0, *[int(part.block.max(initial=-1)) + 1 for part in parts]])
        moved = [part._replace(block=part.block + at) for part, at in zip(parts, first, strict=False)]
        return Tuples(*map(np.concatenate, zip(*moved, strict=True)))


def sample_tuples(features: Features, warmup: int, count: int, seed: int) -> Tuples:
    """Draw complete units at the ends of the steps after the warm-up, as many at each step.

    Parameters
    ----------
    features : Features
        What is known of each unit.
    warmup : int
        Steps left out.
    count : int
        Rows in all, about.
    seed : int
        Of the drawing.
    """
    script = features.script
    recording = script.stream.recording
    blocks, layers, heads = script.shape
    rng = np.random.default_rng(seed)
    ends = script.ends[::layers]
    wait = np.empty((recording.steps, blocks * layers * heads), np.int32)
    upcoming = np.full(blocks * layers * heads, np.iinfo(np.int32).max // 2, np.int32)
    for step in reversed(range(recording.steps)):
        wait[step] = upcoming - step
        upcoming[script.units[ends[step] : ends[step + 1]]] = step
    each = -(-count // (recording.steps - warmup))
    rows = []
    for step, known in features.steps():
        if step >= warmup:
            complete = recording.open_block(step) * layers * heads
            drawn = rng.choice(complete, min(each, complete), replace=False)
            rows.append((known[:, drawn].T, wait[step, drawn], np.full(len(drawn), step)))
    found, waits, steps = map(np.concatenate, zip(*rows, strict=True))
    return Tuples(found, waits.astype(np.int64), recording.steps - 1 - steps, (steps - warmup) // BLOCK_STEPS)


def fit_logistic(features: Floats, asked: NDArray[np.bool_], start: Floats | None = None) -> tuple[Floats, Floats]:
    """Fit ``logit P(asked) = c + b · features`` with all three slopes at least 0.

    Parameters
    ----------
    features : float64 [n, 3]
        R, E and N.
    asked : bool [n]
        Whether the unit was asked for within the horizon.
    start : float64 [4], optional
        Slopes and intercept to begin with.

    Returns
    -------
    weights : float64 [3]
        The slopes, scaled to sum to 1; all 0 if none of the features tells anything.
    theta : float64 [4]
        Slopes and intercept.

    Notes
    -----
    L-BFGS-B on the mean log loss; slopes cost 1e-6 times half their squared length, which keeps them finite where the
    features separate the labels.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    signs = np.where(asked, -1.0, 1.0)

    def loss(theta: Floats) -> tuple[float, Floats]:
        margin = signs * (features @ theta[:3] + theta[3])
        pull = signs * expit(margin) / len(signs)
        slopes = theta[:3]
        value = float(np.logaddexp(0, margin).mean()) + 0.5e-6 * float(slopes @ slopes)
        return value, np.array([*(pull @ features + 1e-6 * slopes), pull.sum()])

    found = minimize(
        loss, np.zeros(4) if start is None else start, jac=True, method="L-BFGS-B",
        bounds=[(0, None)] * 3 + [(None, None)],
    )  # fmt: skip
    theta = np.asarray(found.x, np.float64)
    total = float(theta[:3].sum())
    return (theta[:3] / total if total > 1e-9 else np.zeros(3)), theta


def logistic_interval(tuples: Tuples, asked: NDArray[np.bool_], *, draws: int, seed: int) -> dict[str, Any]:
    """Fit the weights, with 95 % intervals from resampled blocks of 16 steps.

    Parameters
    ----------
    tuples : Tuples
        Rows of `Tuples.labels`.
    asked : bool [n]
        Their labels.
    draws : int
        Resamplings.
    seed : int
        Of these.

    Returns
    -------
    dict
        ``weights``, ``low``, ``high`` (lists of three), ``intercept``, ``slopes``, ``asked_share``, ``tuples``.

    Raises
    ------
    BadInput
        If all labels are the same, or no feature tells anything.
    """
    if asked.all() or not asked.any():
        raise BadInput(
            f"{'all' if asked.all() else 'none'} of {len(asked)} sampled units are asked for again within the horizon, so there "
            "is nothing to tell apart: choose another horizon, or a selector that leaves some out"
        )
    weights, theta = fit_logistic(tuples.features, asked)
    if not weights.any():
        raise BadInput("neither recency nor EMA nor sink zone tells which units are asked for next: no weights can be fitted")
    rng = np.random.default_rng(seed)
    parts = _by_block(tuples.block)
    drawn = []
    for _ in range(draws):
        rows = np.concatenate([parts[i] for i in rng.integers(len(parts), size=len(parts))])
        if asked[rows].any() and not asked[rows].all():
            drawn.append(fit_logistic(tuples.features[rows], asked[rows], theta)[0])
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0) if drawn else (weights, weights)
    return {
        "weights": weights.tolist(), "low": low.tolist(), "high": high.tolist(), "intercept": float(theta[3]),
        "slopes": theta[:3].tolist(), "asked_share": float(asked.mean()), "tuples": len(asked),
    }  # fmt: skip


def quantile_interval(values: Floats, block: NDArray[np.int64], share: float, *, draws: int, seed: int) -> dict[str, float]:
    """Least value of the top `share` of `values`, with a 95 % interval from resampled blocks: ``value``, ``low``, ``high``."""
    rng = np.random.default_rng(seed)
    parts = [values[rows] for rows in _by_block(block)]
    level = 100 * (1 - min(max(share, 0.0), 1.0))
    drawn = [
        float(np.percentile(np.concatenate([parts[i] for i in rng.integers(len(parts), size=len(parts))]), level))
        for _ in range(draws)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"value": float(np.percentile(values, level)), "low": float(low), "high": float(high)}


def _by_block(block: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Rows of each block, in the order of blocks: what is resampled."""
    order = np.argsort(block, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(block[order])) + 1)


def sums_by_block(values: NDArray[np.int64], warmup: int) -> NDArray[np.int64]:
    """Sum counts of steps after the warm-up over blocks of 16; a shorter rest joins the last one, int64 [blocks]."""
    counted = values[warmup:]
    starts = np.arange(0, max(len(counted) - BLOCK_STEPS, 0) + 1, BLOCK_STEPS)
    sums: NDArray[np.int64] = np.add.reduceat(counted, starts)
    return sums


@dataclass(frozen=True, eq=False)
class Trials:
    """Hits that several values of a constant had on several texts.

    Parameters
    ----------
    values : list
        What was tried, in order.
    hits : list of int64 [values, blocks]
        For each text, by blocks of 16 steps.
    accesses : list of int64 [blocks]
        For each text.
    """

    values: list[Any]
    hits: list[NDArray[np.int64]]
    accesses: list[NDArray[np.int64]]

    @cached_property
    def ratios(self) -> Floats:
        """Block hit ratio of each value on each text, float64 [values, texts]."""
        return np.stack([h.sum(axis=1) / a.sum() for h, a in zip(self.hits, self.accesses, strict=True)], axis=1)

    @cached_property
    def means(self) -> Floats:
        """Mean over texts, float64 [values]."""
        found: Floats = self.ratios.mean(axis=1)
        return found

    def best(self, before: Any = None) -> int:
        """Which value has the highest mean; `before`, if it was tried and has as much to within 0.01 point."""
        return int(self._best(self.means[:, None], before)[0])

    def drawn(self, draws: int, seed: int, before: Any = None) -> NDArray[np.intp]:
        """`best` of each of `draws` resamplings of every text's blocks, int [draws]."""
        rng = np.random.default_rng(seed)
        means = np.zeros((len(self.values), draws))
        for hits, accesses in zip(self.hits, self.accesses, strict=True):
            times = rng.multinomial(len(accesses), np.full(len(accesses), 1 / len(accesses)), size=draws).T
            means += (hits @ times) / (accesses @ times) / len(self.hits)
        return self._best(means, before)

    def _best(self, means: Floats, before: Any) -> NDArray[np.intp]:
        best: NDArray[np.intp] = means.argmax(axis=0)
        if before not in self.values:
            return best
        known = self.values.index(before)
        return np.where(means[known] >= means.max(axis=0) - 1e-4, known, best)

    def within(self, points: float) -> list[Any]:
        """Values whose mean is at most `points` percentage points below the best."""
        close = self.means >= self.means.max() - points / 100
        return [value for value, is_close in zip(self.values, close, strict=True) if is_close]


def mean_interval(values: Sequence[float]) -> dict[str, float]:
    """Mean of independent `values` as ``value``; of two or more, also Student's 95 % interval ``low`` to ``high``."""
    from scipy.stats import t

    data = np.asarray(values, np.float64)
    found = {"value": float(data.mean())}
    if len(data) > 1:
        half = float(t.ppf(0.975, len(data) - 1) * data.std(ddof=1) / math.sqrt(len(data)))
        found |= {"low": found["value"] - half, "high": found["value"] + half}
    return found
