"""Memory for units on a GPU: the same slots, reached from the host by pinned memory and a stream of copies beside the model's.

Three things run side by side: the model's stream computes, the copy stream brings and takes units, and I/O threads move
pinned memory to and from the disk. Each waits only for what it needs:

- a copy into slots waits for what the model's stream had been given before those slots were asked for: they were free, so
  nothing later looks at what they held;
- the model's stream waits, on the GPU, for each copy that has been issued; the host does not;
- the host waits for one thing: that bytes which the disk is to get have arrived in pinned memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvpager.core import Ids
from kvpager.errors import CapacityError, InvariantError
from kvpager.slab.space import Space
from kvpager.tiers.arena import Arena, Bytes, Passage
from kvpager.tiers.pinned import PinnedArena

__all__ = ["DeviceArena"]


class DeviceArena(Arena):
    """GPU memory cut into slots; fulfils the contract of `Arena`, whose `memory` is a tensor here.

    Parameters
    ----------
    slots, slot_bytes : int
        As for `Arena`.
    device : str
        E.g. ``"cuda:0"``.

    Raises
    ------
    CapacityError
        If the GPU has no such amount free.
    """

    memory: Any

    def __init__(self, slots: int, slot_bytes: int, device: str) -> None:
        if slots < 1 or slot_bytes < 1:
            raise CapacityError(f"an arena of {slots} slots of {slot_bytes} bytes holds nothing: give at least one slot")
        self.device, self._device = device, torch.device(device)
        try:
            self.memory = torch.zeros(slots, slot_bytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            free, _ = torch.cuda.mem_get_info(self._device)
            raise CapacityError(
                f"no memory on {device} for an arena of {slots * slot_bytes:,} bytes, {free:,} are free: give HBM less"
            ) from error
        self._space, self._copies = Space(slots), torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._incoming: dict[int, tuple[Tensor, torch.cuda.Event]] = {}  # by address

    def read(self, slots: Ids) -> Bytes:
        content: Bytes = self.memory[self._index(slots)].cpu().numpy()
        return content

    def write(self, slots: Ids, content: Bytes) -> None:
        self.memory[self._index(slots)] = torch.from_numpy(np.ascontiguousarray(content)).to(self._device)

    def outgoing(self, slots: Ids) -> Passage:
        host = self._pinned(len(slots))
        with self._beside():
            host.copy_(self.memory[self._index(slots)], non_blocking=True)
        self._copies.synchronize()
        return Passage(slots, host.numpy(), np.arange(len(slots), dtype=np.int32))

    def incoming(self, slots: Ids) -> Passage:
        host = self._pinned(len(slots))
        self._incoming[host.data_ptr()] = host, torch.cuda.current_stream(self._device).record_event()
        return Passage(slots, host.numpy(), np.arange(len(slots), dtype=np.int32))

    def arrived(self, passage: Passage, good: NDArray[np.bool_]) -> None:
        host, free_since = self._incoming.pop(passage.memory.ctypes.data)
        slots = passage.slots[good]
        if not len(slots):
            return
        if not good.all():
            host = host[torch.from_numpy(passage.places[good])].pin_memory()
        self._copies.wait_event(free_since)
        with torch.cuda.stream(self._copies):
            self.memory.index_copy_(0, self._index(slots), host.to(self._device, non_blocking=True))
        self._wait_for_copies()

    def neighbour(self, slots: int) -> Arena:
        return PinnedArena(slots, self.memory.shape[1], self._device)

    def save(self, slots: Ids, other: Arena, places: Ids) -> None:
        with self._beside():
            _mapped(other).index_copy_(0, self._index(places), self.memory[self._index(slots)])
        self._wait_for_copies()

    def load(self, slots: Ids, other: Arena, places: Ids) -> None:
        with self._beside():
            self.memory.index_copy_(0, self._index(slots), _mapped(other)[self._index(places)])
        self._wait_for_copies()

    def close(self) -> None:
        """Give the memory back to the GPU."""
        torch.cuda.synchronize(self._device)
        self.memory = self.memory[:0].clone()

    def _pinned(self, slots: int) -> Tensor:
        return torch.empty(slots, self.memory.shape[1], dtype=torch.uint8, pin_memory=True)

    def _index(self, slots: Ids) -> Tensor:
        return torch.from_numpy(slots.astype(np.int64)).pin_memory().to(self._device, non_blocking=True)

    def _beside(self) -> Any:
        """The copy stream, after all that the model's stream has been given."""
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._copies)

    def _wait_for_copies(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._copies)


def _mapped(other: Arena) -> Tensor:
    if not isinstance(other, PinnedArena):
        raise InvariantError("an arena on a GPU exchanges units with neighbours that it made, in pinned memory")
    return other.mapped
