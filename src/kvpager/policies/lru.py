"""Least recently used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy, creation_step, fill_new

__all__ = ["LRU"]


@POLICIES.register("lru")
@dataclass
class LRU(Policy):
    """Keep what was asked for last; creation counts as use.

    Source: the textbook policy; first of the notes' five rungs. Differs in: one layer's units are
    asked for together, so ties inside a batch are broken by a seeded hash. On one global pool it is a
    scan: a step asks for more than a small pool holds.
    """

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._last: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._last = fill_new(self._last, self._table)
        self._last[units] = creation_step(self._table, tick, units) + self._layer_share(tick)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._last[units] = tick.step + self._layer_share(tick)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._last[units]

    def _layer_share(self, tick: Tick) -> float:
        return max(tick.layer, 0) / self._table.num_layers
