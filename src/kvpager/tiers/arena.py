"""Memory for units, cut into slots: one private mapping, touched beforehand, on huge pages where the system gives them.

What an arena says of itself and of its neighbours is the same wherever its memory is: on a host, in here, bytes go
straight to and from the slots; on a GPU, `kvpager.tiers.device`, they go through pinned memory and a stream.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import CapacityError
from kvpager.slab.memory import private_memory
from kvpager.slab.space import Space

__all__ = ["Arena", "Passage"]

Bytes = NDArray[np.uint8]


class Passage(NamedTuple):
    """Where bytes stand on their way between an arena's slots and what only host memory reaches, such as a disk."""

    slots: Ids
    memory: Bytes
    """Host memory, ``[places, slot_bytes]``; the arena's own, if that is on the host."""
    places: Ids
    """Rows of `memory`, aligned with `slots`."""


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

    device = "cpu"

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if slots < 1 or slot_bytes < 1:
            raise CapacityError(f"an arena of {slots} slots of {slot_bytes} bytes holds nothing: give at least one slot")
        length = slots * slot_bytes
        try:
            self._mapping = private_memory(length)
        except (OSError, OverflowError, ValueError) as error:
            raise CapacityError(f"no memory for an arena of {length:,} bytes ({error}): give it fewer slots") from error
        self.memory: Bytes = np.frombuffer(self._mapping, np.uint8).reshape(slots, slot_bytes)
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

    def read(self, slots: Ids) -> Bytes:
        """Return a copy of the bytes in `slots`, uint8 [slots, slot_bytes]."""
        return self.memory[slots]

    def write(self, slots: Ids, content: Bytes) -> None:
        """Write `content`, uint8 [slots, slot_bytes], into `slots`."""
        self.memory[slots] = content

    def outgoing(self, slots: Ids) -> Passage:
        """Return where host memory holds what is in `slots` now."""
        return Passage(slots, self.memory, slots)

    def incoming(self, slots: Ids) -> Passage:
        """Return where in host memory to write what is to be in `slots`; then call `arrived`."""
        return Passage(slots, self.memory, slots)

    def arrived(self, passage: Passage, good: NDArray[np.bool_]) -> None:
        """Take what was written where `incoming` said into the slots for which it is `good`."""

    def neighbour(self, slots: int) -> Arena:
        """Return a host arena of slots of the same size, for `save` and `load`."""
        return Arena(slots, self.memory.shape[1])

    def save(self, slots: Ids, other: Arena, places: Ids) -> None:
        """Copy `slots` to `places` of a neighbour."""
        other.memory[places] = self.memory[slots]

    def load(self, slots: Ids, other: Arena, places: Ids) -> None:
        """Copy `places` of a neighbour to `slots`."""
        self.memory[slots] = other.memory[places]

    def close(self) -> None:
        """Give the memory back to the system; if somebody still looks at it, when the last one stops."""
        self.memory = np.zeros((0, self.memory.shape[1]), np.uint8)
        with contextlib.suppress(BufferError):
            self._mapping.close()
