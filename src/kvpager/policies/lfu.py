"""Least frequently used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy, fill_new

__all__ = ["LFU"]


@POLICIES.register("lfu")
@dataclass
class LFU(Policy):
    """Keep what was asked for most often; counts start at 1 and, by default, survive eviction.

    Source: the textbook policy ("perfect LFU" with persistent counts, "in-cache LFU" without).

    Parameters
    ----------
    persist_scores : bool
        Whether a count survives eviction.
    """

    persist_scores: bool = True

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._count: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._count = fill_new(self._count, self._table)
        self._count[units] = 1

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._count[units] += 1

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        if freed or not self.persist_scores:
            self._count[units] = 1

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._count[units]
