"""Shares of attention: how scores become shares, and what a share of the positions covers.

A *profile* is a list of zones, each with its share of the positions and its share of the attention mass; within
a zone the mass is taken as even. That is the form in which note 000 §6 states its locality assumption; what a
recording shows is in `kvpager.analysis.locality`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "any_of_group",
    "exponentials",
    "linear_shares",
    "mass_covered",
    "positions_needed",
    "required_of_part",
    "softmax_shares",
]

Floats = NDArray[np.float64]


def exponentials(scores: ArrayLike) -> Floats:
    """e^score of each score: what softmax divides by its sum."""
    return np.asarray(np.exp(np.asarray(scores, dtype=np.float64)), dtype=np.float64)


def softmax_shares(scores: ArrayLike) -> Floats:
    """Shares that softmax gives to `scores` along the last axis; they sum to 1."""
    logits = np.asarray(scores, dtype=np.float64)
    powers = exponentials(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float64)


def linear_shares(scores: ArrayLike) -> Floats:
    """Shares by plain division, score ÷ sum of scores: not what attention does."""
    values = np.asarray(scores, dtype=np.float64)
    return np.asarray(values / values.sum(axis=-1, keepdims=True), dtype=np.float64)


def mass_covered(position_share: float, zone_positions: ArrayLike, zone_mass: ArrayLike) -> Floats:
    """Mass share that the first `position_share` of the positions covers, zones taken in the order given.

    Parameters
    ----------
    position_share : float
        Share of the positions that is held, 0 to 1.
    zone_positions, zone_mass : array_like [zones]
        Share of the positions and of the mass in each zone, most valuable zone first.

    Returns
    -------
    float64 array
        Share of the mass.
    """
    return _along(position_share, zone_positions, zone_mass)


def positions_needed(mass_share: float, zone_positions: ArrayLike, zone_mass: ArrayLike) -> Floats:
    """Share of the positions that must be held to cover `mass_share`; the inverse of `mass_covered`."""
    return _along(mass_share, zone_mass, zone_positions)


def _along(share: float, given: ArrayLike, wanted: ArrayLike) -> Floats:
    """Fill zones in order until `share` of `given` is used up; add up `wanted` of what was filled."""
    sizes, values = np.asarray(given, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    before = np.cumsum(sizes) - sizes
    filled = np.clip((share - before) / sizes, 0.0, 1.0)
    return np.asarray((filled * values).sum(), dtype=np.float64)


def any_of_group(share: ArrayLike, group: ArrayLike) -> Floats:
    """Chance that a group holds at least one member of a kind with this share, if kinds fall independently."""
    return np.asarray(1.0 - (1.0 - np.asarray(share, dtype=np.float64)) ** np.asarray(group, dtype=np.float64))


def required_of_part(overall: ArrayLike, part: ArrayLike) -> Floats:
    """Ratio that a part with share `part` must reach for `overall`, if everything else reaches 1."""
    return np.asarray(1.0 - (1.0 - np.asarray(overall, dtype=np.float64)) / np.asarray(part, dtype=np.float64))
