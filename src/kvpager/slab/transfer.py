"""What reading and writing records have in common: how much moves in one call, and whose memory it is.

Units that are neighbours on disk, or nearly, move in one call. They go straight between disk and slots, or the memory that a
caller lends, where that is long runs of whole pages; else through the thread's own scratch memory, because a call with many
short pieces is slower than a copy, and because O_DIRECT moves whole pages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.files import PAGE_BYTES, Buffer, Files, aligned, write_fully
from kvpager.slab.record import Shape

__all__ = ["LEAST_PIECE_BYTES", "MOST_GAP_BYTES", "MOST_PIECES", "Disk", "Lender"]

MOST_RUN_BYTES = 1 << 20
"""Neighbouring records move together up to this; one record always does."""
LEAST_JOB_BYTES = 64 << 10
"""A ticket is cut into a job a thread, but not below this."""
LEAST_PIECE_BYTES = 64 << 10
"""Pieces shorter than this on average go through scratch."""
MOST_GAP_BYTES = 16 << 10
"""A gap up to this is read along rather than jumped over."""
MOST_PIECES = 1000
"""Of one call; the system's limit is 1,024."""


class Lender(ABC):
    """Callers' memory, for which `SlabStore.read` and `SlabStore.write` need no slots. Called by I/O threads."""

    @abstractmethod
    def lend(self, number: int) -> Buffer | None:
        """The memory of the request's part `number`, whole pages and as long as a part, till it is given back.

        None: it is not to be had, and `copy` is to be used.
        """

    @abstractmethod
    def give_back(self, number: int) -> None:
        """End what `lend` began."""

    def lend_all(self, numbers: list[int]) -> list[Buffer]:
        """The memory of several parts, till each is given back; nothing if not all of it is to be had."""
        lent: list[Buffer] = []
        for number in numbers:
            if (memory := self.lend(number)) is None:
                self.give_all_back(numbers[: len(lent)])
                return []
            lent.append(memory)
        return lent

    def give_all_back(self, numbers: list[int]) -> None:
        """End what `lend_all` began."""
        for number in numbers:
            self.give_back(number)

    @abstractmethod
    def copy(self, number: int, part: NDArray[np.uint8]) -> bool:
        """Copy a right part to its caller, or a caller's to `part`, which is the thread's; False: the caller is gone."""


class Disk:
    """The open slabs, and how they like to be read.

    Parameters
    ----------
    files : Files
        The file layer.
    shape : Shape
        Of the records.
    threads : int
        That work on one ticket.

    Attributes
    ----------
    fds : dict of int to int
        Descriptor by slab number.
    direct : bool
        Whether they are open with O_DIRECT.
    identity : int
        Of the shape.
    parts, part_bytes, payload_bytes, record_bytes, slab_bytes, places : int
        Of the shape.
    run_bytes : int
        Longest run.
    scratch_bytes : int
        What a thread needs.
    """

    def __init__(self, files: Files, shape: Shape, threads: int) -> None:
        self.files, self.shape, self.threads, self.identity = files, shape, threads, shape.identity
        self.fds: Mapping[int, int] = {}
        self.direct = True
        self.parts, self.part_bytes, self.payload_bytes = shape.parts, shape.part_bytes, shape.payload_bytes
        self.record_bytes, self.slab_bytes, self.places = shape.record_bytes, shape.slab_bytes, shape.places
        self._rest = self.slab_bytes - self.places * self.record_bytes  # of a slab, beside its places
        self.run_bytes = max(MOST_RUN_BYTES // shape.record_bytes, 1) * shape.record_bytes
        self.scratch_bytes = self.run_bytes + shape.part_bytes + MOST_GAP_BYTES + 3 * PAGE_BYTES

    def wipe(self, places: Collection[int]) -> None:
        """Overwrite the headers in `places` with zeros."""
        page = aligned(PAGE_BYTES).data
        for place in places:
            write_fully(self.files, self.fds[place // self.shape.places], [page], self.shape.place_offset(place))

    def whole_pages(self, memory: NDArray[np.uint8]) -> bool:
        """Whether parts can go straight between the disk and the slots of `memory`."""
        return not self.direct or (self.shape.part_bytes % PAGE_BYTES == 0 and memory.ctypes.data % PAGE_BYTES == 0)

    def cut(self, run_bytes: list[int]) -> list[tuple[int, int]]:
        """Share runs out among jobs; return each job's first run and the one behind its last."""
        job_bytes = min(max(sum(run_bytes) // self.threads, LEAST_JOB_BYTES), MOST_RUN_BYTES)
        jobs, first, length = [], 0, 0
        for number, more in enumerate(run_bytes, 1):
            length += more
            if length >= job_bytes:
                jobs.append((first, number))
                first, length = number, 0
        return jobs if first == len(run_bytes) else [*jobs, (first, len(run_bytes))]
