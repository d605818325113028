"""The blocks of one size: their place on disk, and how they come and go.

All I/O is between the disk and memory of the I/O threads, who copy from and to callers' buffers, too: those are never in the
hands of a thread that waits for a disk, unless the caller lends them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.files import Buffer, Files
from kvpager.slab.io import Workers
from kvpager.slab.tagged import TaggedStore
from kvpager.slab.transfer import Lender
from kvpager.store.entry import TAG_BYTES, Entry, tags_of
from kvpager.store.requests import Job, copy

__all__ = ["FINGERPRINT", "Done", "Finished", "Shelf"]

FINGERPRINT = "kvpager blocks 1"
_MOST_UNDER_WAY, _TICKETS = 256, 8
"""So many blocks of a size are under way at most, in about so many tickets: one for each thread."""

Done = Callable[[bool], None]


class Finished(NamedTuple):
    """Blocks that were read or written together."""

    jobs: list[tuple[Job, Entry]]
    ok: list[bool]
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
        Of blocks under way; two may always be.
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
        self._free = max(staging_bytes // size, 2)
        if self._free >= workers.count:  # more take no more memory: they wait for a thread
            self._free = min(max(self._free, 2 * workers.count), _MOST_UNDER_WAY)
        self._together = max(1, self._free // _TICKETS)
        self.reads: deque[tuple[Job, Entry]] = deque()
        self.writes: deque[tuple[Job, Entry]] = deque()
        self._under_way: dict[int, tuple[list[tuple[Job, Entry]], bool]] = {}
        self._wipes: dict[int, Done] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is asked of it or under way."""
        return not (self.reads or self.writes or self._under_way or self._wipes)

    @property
    def busy(self) -> bool:
        """Whether I/O is under way."""
        return bool(self._under_way or self._wipes)

    def being_read(self) -> Iterator[Job]:
        """What is to be read and has not finished."""
        yield from (job for job, _ in self.reads)
        yield from (job for jobs, written in self._under_way.values() if not written for job, _ in jobs)

    @property
    def batch(self) -> int:
        """How many blocks can begin together now."""
        return min(self._free, self._together)

    def start_reads(self) -> None:
        """Begin as many reads as may be under way."""
        while self.reads and (count := self.batch):
            jobs = [self.reads.popleft() for _ in range(min(count, len(self.reads)))]
            jobs = [(job, entry) for job, entry in jobs if not job.request.given_up]
            if jobs:
                ticket = self.store.get(np.array([entry.key for _, entry in jobs], np.uint64), _Readers(jobs))
                self._begun(ticket, jobs, written=False)

    def start_writes(self, jobs: list[tuple[Job, Entry]]) -> None:
        """Begin to write `jobs`, for which there are places; raises as `SlabStore.write`."""
        keys = self.store.new_keys(len(jobs))
        for (_, entry), key in zip(jobs, keys.tolist(), strict=True):
            entry.key = key
        self._begun(self.store.put(keys, tags_of([entry for _, entry in jobs]), _Writers(jobs)), jobs, written=True)

    def wipe(self, keys: list[int], done: Done) -> None:
        """Drop records; `done` hears whether it is sure that they stay away."""
        self._wipes[self.store.wipe(np.array(keys, np.uint64))] = done

    def finished(self) -> list[Finished]:
        """Return what was read or written since the last call."""
        found = []
        for ticket, ok in self.store.poll():
            if ticket in self._wipes:
                self._wipes.pop(ticket)(bool(ok.all()))
                continue
            jobs, written = self._under_way.pop(ticket)
            self._free += len(jobs)
            found.append(Finished(jobs, ok.tolist(), written))
        return found

    def _begun(self, ticket: int, jobs: list[tuple[Job, Entry]], *, written: bool) -> None:
        self._under_way[ticket] = jobs, written
        self._free -= len(jobs)


class _Callers(Lender):
    """Those whose blocks move together."""

    def __init__(self, jobs: list[tuple[Job, Entry]]) -> None:
        self._jobs = jobs

    def lend(self, number: int) -> Buffer | None:
        """See `Lender`."""
        job, entry = self._jobs[number]
        return job.lend(entry.size)

    def give_back(self, number: int) -> None:
        """See `Lender`."""
        self._jobs[number][0].request.give_back()


class _Readers(_Callers):
    def copy(self, number: int, part: NDArray[np.uint8]) -> bool:
        """To the caller, if that one still waits."""
        job, entry = self._jobs[number]
        return job.with_memory(lambda memory: copy(memory, part[: entry.length]))


class _Writers(_Callers):
    def copy(self, number: int, part: NDArray[np.uint8]) -> bool:
        """From the caller, zeros behind it."""
        job, entry = self._jobs[number]
        part[entry.length :] = 0
        return job.with_memory(lambda memory: copy(part[: entry.length], memory))
