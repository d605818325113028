"""Memory for units, cut into slots: one private mapping, touched beforehand, on huge pages where the system gives them."""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import CapacityError
from kvpager.slab.memory import private_memory
from kvpager.slab.space import Space

__all__ = ["Arena"]


class Arena:
    """Pre-faulted private memory cut into slots; huge pages where the system gives them.

    Parameters
    ----------
    slots : int
        How many.
    slot_bytes : int
        Payload of a unit.

    Attributes
    ----------
    memory : uint8 [slots, slot_bytes]
        Begins on a page. Valid until `close`.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if slots < 1 or slot_bytes < 1:
            raise CapacityError(f"an arena of {slots} slots of {slot_bytes} bytes holds nothing: give at least one slot")
        length = slots * slot_bytes
        try:
            self._mapping = private_memory(length)
        except (OSError, OverflowError, ValueError) as error:
            raise CapacityError(f"no memory for an arena of {length:,} bytes ({error}): give it fewer slots") from error
        self.memory: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8).reshape(slots, slot_bytes)
        self.memory.fill(0)
        self._space = Space(slots)

    @property
    def free(self) -> int:
        """Slots not taken."""
        return self._space.free

    def take(self, count: int) -> Ids:
        """Take `count` slots, in runs of neighbours where possible; raise `InvariantError` if fewer are free."""
        return self._space.take(count)

    def give(self, slots: Ids) -> None:
        """Give `slots` back; raise `InvariantError` if one is not taken."""
        self._space.give(slots)

    def close(self) -> None:
        """Give the memory back to the system; if somebody still looks at it, when the last one stops."""
        self.memory = np.zeros((0, self.memory.shape[1]), np.uint8)
        with contextlib.suppress(BufferError):
            self._mapping.close()
