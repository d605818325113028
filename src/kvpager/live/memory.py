"""The memory that attention reads: an arena, and which slots each unit stands in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, UnitTable
from kvpager.errors import CapacityError, InvariantError
from kvpager.tiers.arena import Arena

__all__ = ["HBMMemory", "SplitMemory"]

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
        self.table, self.arena = table, arena
        self._slot_of = np.full(0, _NOWHERE)

    def land(self, units: Ids) -> Ids:
        """Give `units` slots, in runs of neighbours where there are any."""
        self._slot_of = self._grown(self._slot_of)
        slots = self.arena.take(len(units))
        self._slot_of[units] = slots
        return slots

    def slots(self, units: Ids) -> Ids:
        """Slots of `units`; of one that has none, `InvariantError`."""
        slots: Ids = self._slot_of[units]
        if len(slots) and slots.min() < 0:
            raise InvariantError(f"unit {int(units[slots < 0][0])} is neither in HBM nor staged: it cannot be read")
        return slots

    def key_slots(self, units: Ids) -> Ids:
        """Slots of the keys of `units`."""
        return self.slots(units)

    def leave(self, units: Ids) -> None:
        """Take back the slots of `units`."""
        if len(units):
            self.arena.give(self.slots(units))
            self._slot_of[units] = _NOWHERE

    def forget(self, units: Ids) -> None:
        """`units` exist no more: give back whatever outlives their stay in HBM."""

    def source(self, units: Ids) -> tuple[Any, Ids, Ids | None]:
        """Return the memory in which `units` stand, their slots, and those of their keys; None if K and V are together."""
        return self.arena.memory, self.slots(units), None

    def content(self, units: Ids) -> NDArray[np.uint8]:
        """Return a copy of the bytes of `units`, K and V together, [units, bytes]."""
        return self.arena.read(self.slots(units))

    def fill(self, units: Ids, content: NDArray[np.uint8]) -> None:
        """Write what `content` returned into the slots of `units`."""
        self.arena.write(self.slots(units), content)

    def _grown(self, slot_of: Ids) -> Ids:
        missing = self.table.size - len(slot_of)
        return slot_of if missing <= 0 else np.concatenate([slot_of, np.full(max(missing, len(slot_of)), _NOWHERE)])


class SplitMemory(HBMMemory):
    """Keys stay as long as their unit exists, in slots of the same arena; only values come and go.

    Parameters
    ----------
    table : UnitTable
        Units, each of which is V alone.
    arena : Arena
        Slots for payload and staging, and one for the keys of each unit that may exist.
    """

    def __init__(self, table: UnitTable, arena: Arena) -> None:
        super().__init__(table, arena)
        self._key_of = np.full(0, _NOWHERE)

    def land(self, units: Ids) -> Ids:
        """Give `units` slots; new ones also get a slot for their keys."""
        self.hold_keys(units)
        return super().land(units)

    def hold_keys(self, units: Ids) -> Ids:
        """Give the keys of `units` slots unless they have them, and return them.

        Raises
        ------
        CapacityError
            If more units exist than were planned for.
        """
        self._key_of = self._grown(self._key_of)
        new = units[self._key_of[units] < 0]
        if len(new):
            if self.arena.free < len(new):
                raise CapacityError(
                    f"the keys of {len(new)} more units find no slot in fast memory: open the store for a longer context, or for "
                    "more rows"
                )
            self._key_of[new] = self.arena.take(len(new))
        return self._key_of[units]

    def key_slots(self, units: Ids) -> Ids:
        """Slots of the keys of `units`."""
        return self._key_of[units]

    def forget(self, units: Ids) -> None:
        """Give back the slots of the keys of `units`."""
        known = units[units < len(self._key_of)]
        known = known[self._key_of[known] >= 0]
        if len(known):
            self.arena.give(self._key_of[known])
            self._key_of[known] = _NOWHERE

    def source(self, units: Ids) -> tuple[Any, Ids, Ids | None]:
        """Return the memory in which `units` stand, their slots, and those of their keys."""
        return self.arena.memory, self.slots(units), self.key_slots(units)

    def content(self, units: Ids) -> NDArray[np.uint8]:
        """Return a copy of the bytes of `units`, K and V together, [units, bytes]."""
        return np.concatenate([self.arena.read(self._key_of[units]), self.arena.read(self.slots(units))], 1)

    def fill(self, units: Ids, content: NDArray[np.uint8]) -> None:
        """Write what `content` returned into the slots of `units` and of their keys."""
        half = content.shape[1] // 2
        self.arena.write(self._key_of[units], content[:, :half])
        self.arena.write(self.slots(units), content[:, half:])
