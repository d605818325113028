"""The memory that attention reads: an arena, and which slot each unit stands in."""

from __future__ import annotations

import numpy as np

from kvpager.core import Ids, UnitTable
from kvpager.errors import InvariantError
from kvpager.tiers.arena import Arena

__all__ = ["HBMMemory"]

_NOWHERE = np.int32(-1)


class HBMMemory:
    """Slots of tiers 0 and 1 and of staging, in one arena; fulfils `kvpager.driver.Memory`.

    Keeping a staged unit is relabelling: it stays in the slot that it was read into.

    Parameters
    ----------
    table : UnitTable
        Units.
    arena : Arena
        Payload slots and staging slots together.
    """

    def __init__(self, table: UnitTable, arena: Arena) -> None:
        self._table, self.arena = table, arena
        self._slot_of = np.full(0, _NOWHERE)

    def land(self, units: Ids) -> Ids:
        """Give `units` slots, in runs of neighbours where there are any."""
        missing = self._table.size - len(self._slot_of)
        if missing > 0:
            more = max(missing, len(self._slot_of))
            self._slot_of = np.concatenate([self._slot_of, np.full(more, _NOWHERE)])
        slots = self.arena.take(len(units))
        self._slot_of[units] = slots
        return slots

    def slots(self, units: Ids) -> Ids:
        """Slots of `units`; of one that has none, `InvariantError`."""
        slots: Ids = self._slot_of[units]
        if len(slots) and slots.min() < 0:
            raise InvariantError(f"unit {int(units[slots < 0][0])} is neither in HBM nor staged: it cannot be read")
        return slots

    def leave(self, units: Ids) -> None:
        """Take back the slots of `units`."""
        if len(units):
            self.arena.give(self.slots(units))
            self._slot_of[units] = _NOWHERE
