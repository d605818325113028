"""Plain arithmetic that claims and tables share: sums, ratios, counts; any units, as long as they agree.

Arrays go in and come out; the last axis is summed. Nothing here knows what it counts: that is said by the
one who calls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "highest",
    "inclusive_count",
    "lowest",
    "orders_of_magnitude",
    "overflow_share",
    "product",
    "ratio",
    "remainder",
    "running_total",
    "spread",
    "terms",
    "total",
]

Floats = NDArray[np.float64]


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)


def total(parts: ArrayLike) -> Floats:
    """Sum of `parts` along the last axis."""
    return _floats(np.sum(_floats(parts), axis=-1))


def remainder(whole: ArrayLike, parts: ArrayLike) -> Floats:
    """What is left of `whole` once `parts` (summed along the last axis) are taken from it."""
    return _floats(_floats(whole) - total(parts))


def product(factors: ArrayLike) -> Floats:
    """Product of `factors` along the last axis."""
    return _floats(np.prod(_floats(factors), axis=-1))


def ratio(amount: ArrayLike, of: ArrayLike) -> Floats:
    """`amount` ÷ `of`, element by element."""
    return _floats(_floats(amount) / _floats(of))


def inclusive_count(first: ArrayLike, last: ArrayLike) -> Floats:
    """How many whole numbers the closed interval [first, last] holds."""
    return _floats(_floats(last) - _floats(first) + 1)


def running_total(start: float, gains: ArrayLike) -> Floats:
    """`start`, then `start` with each further gain added: n gains give n + 1 values."""
    return _floats(np.cumsum(np.concatenate([[start], _floats(gains)])))


def terms(weights: ArrayLike, values: ArrayLike) -> Floats:
    """Weight × value, term by term."""
    return _floats(_floats(weights) * _floats(values))


def overflow_share(needed: ArrayLike, capacity: ArrayLike) -> Floats:
    """Share of `needed` that does not fit into `capacity`; zero if all fits."""
    return _floats(np.maximum(0.0, 1.0 - _floats(capacity) / _floats(needed)))


def lowest(values: ArrayLike) -> Floats:
    """The least of `values` along the last axis: what binds, where rates stand in series."""
    return _floats(np.min(_floats(values), axis=-1))


def highest(values: ArrayLike) -> Floats:
    """The greatest of `values` along the last axis."""
    return _floats(np.max(_floats(values), axis=-1))


def spread(values: ArrayLike) -> Floats:
    """Greatest ÷ least of `values`."""
    return _floats(highest(values) / lowest(values))


def orders_of_magnitude(factor: ArrayLike) -> Floats:
    """Decimal logarithm of a factor."""
    return _floats(np.log10(_floats(factor)))
