"""Where every unit stands, and what is true of it meanwhile: the Pager's state, as arrays over unit ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import DRAM, HBM, NVME, Ids, UnitTable
from kvpager.pool import Pools

__all__ = ["ABSENT", "PageTable", "in_hbm"]

ABSENT = np.int8(-2)
"""Place of a unit that was never appended, or is freed."""

_FLAGS = ("open", "acked", "flying", "early", "evictable")


class PageTable:
    """Place and flags of every unit.

    Parameters
    ----------
    table : UnitTable
        Identity of the units.
    pools : Pools
        Grows with it.

    Attributes
    ----------
    where : int8 [units]
        Tier, `STAGE`, `RECOMPUTE` (its copies are lost) or `ABSENT`.
    open : bool [units]
        Being written: cannot leave HBM.
    acked : bool [units]
        Its backup is acknowledged.
    flying : bool [units]
        On its way to HBM by a prefetch.
    early : bool [units]
        Brought by a prefetch and not used since.
    evictable : bool [units]
        In HBM, backed up and not open.
    """

    def __init__(self, table: UnitTable, pools: Pools) -> None:
        self._table, self._pools = table, pools
        self.where = np.empty(0, np.int8)
        self.open = self.acked = self.flying = self.early = self.evictable = np.empty(0, np.bool_)

    def grow(self) -> None:
        """Learn the units created since."""
        more = self._table.size - len(self.where)
        if more <= 0:
            return
        self.where = np.concatenate([self.where, np.full(more, ABSENT)])
        for name in _FLAGS:
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more, np.bool_)]))
        self._pools.grow()

    def resident(self, units: Ids) -> NDArray[np.bool_]:
        """Which of `units` stand in tier 0 or 1, bool [units]."""
        return in_hbm(self.where[units])

    def held(self) -> NDArray[np.bool_]:
        """Which units take room in HBM: resident or in flight, bool [units]."""
        return in_hbm(self.where) | self.flying

    def forget(self, units: Ids) -> None:
        """Freed: no place, no flag."""
        self.where[units] = ABSENT
        for name in _FLAGS:
            getattr(self, name)[units] = False

    def contradictions(self) -> dict[str, bool]:
        """Return what must never be true, by name, and whether it is."""
        resident = in_hbm(self.where)
        held = np.flatnonzero(self.held()).astype(np.int32)
        lost = np.flatnonzero(((self.where == DRAM) | (self.where == NVME)) & ~self.acked)
        return {
            "a pool's count differs from its resident and in-flight units": bool(
                (self._pools.count(held) != self._pools.used).any()
            ),
            "a pool holds more than its payload (law 6)": bool((self._pools.used > self._pools.capacity).any()),
            f"units {lost[:3]} left HBM without an acknowledged backup (law 4)": len(lost) > 0,
            "an open unit is not in HBM": bool((self.open & ~resident).any()),
            "a resident unit is also in flight": bool((resident & self.flying).any()),
            "the evictable units differ from the page table": bool(
                (self.evictable != (resident & self.acked & ~self.open)).any()
            ),
        }


def in_hbm(where: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Tier 0 or 1; one comparison, since negative places wrap to large unsigned numbers."""
    return where.view(np.uint8) <= HBM
