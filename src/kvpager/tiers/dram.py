"""Tier 2: host or CXL DRAM, as an arena of its own. On a machine without either, it is emulated by the same memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import DRAM, Ids, UnitTable
from kvpager.tiers.arena import Arena
from kvpager.tiers.base import TIERS, ImmediateTier

__all__ = ["DramTier"]


@TIERS.register("dram")
class DramTier(ImmediateTier):
    """Copies units between HBM's arena and its own, at once.

    On a host a copy is over before it could be waited for; on a GPU, what needs it waits for it there.

    Source: the tier contract of the design.

    Parameters
    ----------
    table : UnitTable
        Units.
    hbm : Arena
        HBM's.
    units : int
        How many it holds; 0 = none.
    """

    align_bytes = 1

    def __init__(self, table: UnitTable, hbm: Arena, units: int) -> None:
        super().__init__(DRAM, units * table.unit_bytes, table.unit_bytes)
        self._table, self._hbm, self._arena = table, hbm, hbm.neighbour(max(units, 1))
        self._slot_of = np.full(0, -1, np.int32)

    def close(self) -> None:
        """Give the memory back."""
        self._arena.close()

    def used_bytes(self) -> int:
        return int(np.count_nonzero(self._slot_of >= 0)) * self.unit_bytes

    def forget(self, units: Ids) -> None:
        known = units[units < len(self._slot_of)]
        known = known[self._slot_of[known] >= 0]
        if len(known):
            self._arena.give(self._slot_of[known])
            self._slot_of[known] = -1

    def _holds(self, units: Ids) -> NDArray[np.bool_]:
        return self._slot_of[units] >= 0

    def _write(self, units: Ids, slots: Ids) -> None:
        more = self._table.size - len(self._slot_of)
        if more > 0:
            self._slot_of = np.concatenate([self._slot_of, np.full(max(more, len(self._slot_of)), -1, np.int32)])
        mine = self._slot_of[units] = self._arena.take(len(units))
        self._hbm.save(slots, self._arena, mine)

    def _read(self, units: Ids, slots: Ids) -> None:
        self._hbm.load(slots, self._arena, self._slot_of[units])
