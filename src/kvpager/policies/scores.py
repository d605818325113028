"""Score state that several policies and prefetchers share: exponential moving averages per unit.

The scores of a layer change at that layer's own tick only: those of units not read decay, those read
are updated. Kept dense, because decaying one layer's scores is a single vector operation; the lazy
form ``s_k (1 - alpha)**(t - k)`` is the reference in the tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import fill_new

__all__ = ["NORMALISERS", "AccessEMA", "MassEMA", "check_share", "normalise"]

NORMALISERS = ("raw", "rank", "max", "uniform")


def check_share(name: str, value: float) -> None:
    """Raise `BadInput` unless ``0 < value <= 1``."""
    if not 0 < value <= 1:
        raise BadInput(f"{name} is {value}: give a number above 0 and at most 1")


class MassEMA:
    """EMA of each unit's attention mass, ``s = alpha a + (1 - alpha) s``; the first mass seen is taken whole.

    Parameters
    ----------
    table : UnitTable
        Units.
    alpha : float
        In (0, 1].
    persist : bool
        Whether a score survives eviction.
    """

    def __init__(self, table: UnitTable, alpha: float, persist: bool = True) -> None:
        check_share("alpha", alpha)
        self.table, self.alpha, self.persist = table, alpha, persist
        self.scores: NDArray[np.float64] = np.empty(0)
        self._weight: NDArray[np.float64] = np.empty(0)  # of the next mass: 1 for a unit's first

    def on_new(self) -> None:
        """Make room for units created since."""
        self.scores, self._weight = fill_new(self.scores, self.table), fill_new(self._weight, self.table, 1.0)

    def on_mass(self, seen: Seen) -> None:
        """Decay the tick's layer and take in what was read there."""
        units, mass = seen.units, seen.mass.astype(np.float64)
        layer = self.table.layer_view(self.scores, seen.tick.layer)
        layer *= 1 - self.alpha
        self.scores[units] += self._weight[units] * mass
        self._weight[units] = self.alpha

    def on_gone(self, units: Ids, freed: bool) -> None:
        """Forget units that ceased to exist, and evicted ones unless scores persist."""
        if freed or not self.persist:
            self.scores[units], self._weight[units] = 0, 1

    def take(self, units: Ids) -> NDArray[np.float64]:
        """Return all that is known of `units`, as `give` accepts it, float64 [2, units]."""
        self.on_new()
        return np.stack([self.scores[units], self._weight[units]])

    def give(self, units: Ids, known: NDArray[np.float64]) -> None:
        """Restore what `take` returned, under new ids."""
        self.on_new()
        self.scores[units], self._weight[units] = known


class AccessEMA:
    """EMA of the access bit: how often a unit has been asked for lately. Open units count as always asked.

    Parameters
    ----------
    table : UnitTable
        Units.
    alpha : float
        In (0, 1].
    persist : bool
        Whether a score survives eviction.
    """

    def __init__(self, table: UnitTable, alpha: float, persist: bool = True) -> None:
        check_share("alpha", alpha)
        self.table, self.alpha, self.persist = table, alpha, persist
        self.scores: NDArray[np.float64] = np.empty(0)
        self._open: dict[int, Ids] = {}  # by the layer of the tick that they were created in

    def on_new(self, tick: Tick, units: Ids) -> None:
        """Start complete units at 0, and open ones at 1: the open block is read at every step."""
        self.scores = fill_new(self.scores, self.table)
        self.scores[units] = ~self.table.sealed[units]
        known = self._open.get(tick.layer, units[:0])
        self._open[tick.layer] = np.concatenate([known, units[~self.table.sealed[units]]])

    def on_access(self, tick: Tick, units: Ids) -> None:
        """Decay the tick's layer and count what was asked for there."""
        layer = self.table.layer_view(self.scores, tick.layer)
        layer *= 1 - self.alpha
        still = self._open.get(tick.layer, units[:0])
        still = self._open[tick.layer] = still[~self.table.sealed[still]]
        self.scores[still] = 1.0
        self.scores[units] += self.alpha

    def on_gone(self, units: Ids, freed: bool) -> None:
        """Forget units that ceased to exist, and evicted ones unless scores persist."""
        if freed or not self.persist:
            self.scores[units] = 0


def normalise(scores: NDArray[np.float64], how: str) -> NDArray[np.float64]:
    """Bring scores of one layer to a scale the placement score can use.

    Parameters
    ----------
    scores : float64 [heads, blocks]
        EMA scores of one layer's units.
    how : {"raw", "rank", "max", "uniform"}
        As they are; percentile rank within the head; divided by the head's largest; or
        ``min(1, s n / 32)``, the multiple of uniform attention, saturating at 32.

    Returns
    -------
    float64 [heads, blocks]
    """
    blocks = scores.shape[1]
    scaled: NDArray[np.float64]
    if how == "raw":
        scaled = scores
    elif how == "rank":
        scaled = np.stack([np.searchsorted(np.sort(row), row) for row in scores]) / max(blocks - 1, 1)
    elif how == "max":
        scaled = scores / np.maximum(scores.max(axis=1, keepdims=True, initial=0), 1e-30)
    elif how == "uniform":
        scaled = np.minimum(1.0, scores * blocks / 32)
    else:
        raise BadInput(f"unknown normalisation {how!r}: choose among {', '.join(NORMALISERS)}")
    return scaled
