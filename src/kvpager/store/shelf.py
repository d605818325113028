"""The blocks of one size: their place on disk, and the memory through which they come and go.

All I/O is between the disk and this memory, whose slots lie on pages: a caller's buffer is never in the hands of a thread
that waits for a disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.files import Files
from kvpager.slab.io import Workers
from kvpager.slab.memory import private_memory
from kvpager.slab.tagged import TaggedStore
from kvpager.store.entry import TAG_BYTES, Entry, tags_of
from kvpager.store.requests import Job

__all__ = ["FINGERPRINT", "Finished", "Shelf"]

FINGERPRINT = "kvpager blocks 1"
_TICKETS = 4
"""A shelf's slots are shared among this many tickets, so that one can be copied while others are on their way."""

Done = Callable[[bool], None]


class Finished(NamedTuple):
    """A block that was read or written."""

    job: Job
    entry: Entry
    ok: bool
    slot: int
    written: bool


class Shelf:
    """Places of one size.

    Parameters
    ----------
    folder : Path
        Where they are.
    size, slab_bytes : int
        Of a place and of a slab.
    staging_bytes : int
        Of memory; there are at least two slots.
    files : Files
        The file layer.
    workers : Workers
        I/O threads.
    wake : callable
        Called by a thread when something finished.

    Attributes
    ----------
    store : TaggedStore
        The records.
    reads, writes : deque
        What has not begun.
    """

    def __init__(
        self, folder: Path, size: int, slab_bytes: int, staging_bytes: int, files: Files, workers: Workers,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        self.folder, self.size = folder, size
        self.store = TaggedStore(folder, size, TAG_BYTES, slab_bytes, FINGERPRINT, files, workers, wake)
        slots = min(max(staging_bytes // size, 2), 64)
        self.memory: NDArray[np.uint8] = np.frombuffer(private_memory(slots * size), np.uint8).reshape(slots, size)
        self._free = list(range(slots))
        self._together = max(1, slots // _TICKETS)
        self.reads: deque[tuple[Job, Entry]] = deque()
        self.writes: deque[tuple[Job, Entry]] = deque()
        self._under_way: dict[int, tuple[list[tuple[Job, Entry]], list[int], bool]] = {}
        self._wipes: dict[int, Done] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is asked of it or under way."""
        return not (self.reads or self.writes or self._under_way or self._wipes)

    @property
    def busy(self) -> bool:
        """Whether I/O is under way."""
        return bool(self._under_way or self._wipes)

    def batch(self, queue: deque[tuple[Job, Entry]]) -> int:
        """How many of `queue` can begin together now."""
        return min(len(self._free), self._together, len(queue))

    def start_reads(self) -> None:
        """Begin as many reads as there are slots for."""
        while count := self.batch(self.reads):
            jobs = [self.reads.popleft() for _ in range(count)]
            jobs = [(job, entry) for job, entry in jobs if not job.request.given_up]
            if jobs:
                slots = [self._free.pop() for _ in jobs]
                keys = np.array([entry.key for _, entry in jobs], np.uint64)
                ticket = self.store.get(keys, self.memory, np.array(slots, np.int32))
                self._under_way[ticket] = jobs, slots, False

    def start_writes(self, jobs: list[tuple[Job, Entry]]) -> list[tuple[Job, Entry]]:
        """Begin to write `jobs`, for which there are slots and places; return those whose memory could be had."""
        begun, slots = [], []
        for job, entry in jobs:
            slot = self._free[-1]
            row = self.memory[slot]

            def copy(memory: NDArray[np.uint8], row: NDArray[np.uint8] = row) -> None:
                row[: len(memory)] = memory
                row[len(memory) :] = 0

            if job.with_memory(copy):
                begun.append((job, entry))
                slots.append(self._free.pop())
        keys = self.store.new_keys(len(begun))
        for (_, entry), key in zip(begun, keys.tolist(), strict=True):
            entry.key = key
        if begun:
            try:
                ticket = self.store.put(keys, tags_of([entry for _, entry in begun]), self.memory, np.array(slots, np.int32))
            except BaseException:
                self._free += slots
                raise
            self._under_way[ticket] = begun, slots, True
        return begun

    def wipe(self, keys: list[int], done: Done) -> None:
        """Drop records; `done` hears whether it is sure that they stay away."""
        self._wipes[self.store.wipe(np.array(keys, np.uint64))] = done

    def finished(self) -> list[Finished]:
        """Return what was read or written since the last call; its slot is taken till `free_slot`."""
        found = []
        for ticket, ok in self.store.poll():
            if ticket in self._wipes:
                self._wipes.pop(ticket)(bool(ok.all()))
                continue
            jobs, slots, written = self._under_way.pop(ticket)
            for (job, entry), slot, good in zip(jobs, slots, ok.tolist(), strict=True):
                found.append(Finished(job, entry, good, slot, written))
        return found

    def free_slot(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)
