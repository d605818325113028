"""Reading and writing records: which bytes move in one call, and whether they go straight to their slots.

Units that are neighbours on disk, or nearly, move in one call. They go straight between disk and slots where the slots are
long runs of whole pages; else through the thread's own scratch memory, because a call with many short pieces is slower
than a copy, and because O_DIRECT moves whole pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.core import Ids
from kvpager.slab.files import PAGE_BYTES, Buffer, Files, aligned, read_fully, write_fully
from kvpager.slab.io import Ticket
from kvpager.slab.record import U64, Shape, write_header

__all__ = ["Disk", "Reads", "Request", "Writes"]

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
    run_bytes : int
        Longest run.
    scratch_bytes : int
        What a thread needs.
    """

    def __init__(self, files: Files, shape: Shape, threads: int) -> None:
        self.files, self.shape, self.threads, self.identity = files, shape, threads, shape.identity
        self.fds: Mapping[int, int] = {}
        self.direct = True
        self.run_bytes = max(MOST_RUN_BYTES // shape.record_bytes, 1) * shape.record_bytes
        self.scratch_bytes = self.run_bytes + shape.part_bytes + MOST_GAP_BYTES + 2 * PAGE_BYTES

    def address(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where places begin, if the slabs stood one behind the other."""
        slab, slot = np.divmod(places, self.shape.places)
        address: NDArray[np.int64] = slab * self.shape.slab_bytes + PAGE_BYTES + slot * self.shape.record_bytes
        return address

    def wipe(self, places: Collection[int]) -> None:
        """Overwrite the headers in `places` with zeros."""
        page = aligned(PAGE_BYTES).data
        for place in places:
            write_fully(self.files, self.fds[place // self.shape.places], [page], self.shape.place_offset(place))

    def whole_pages(self, memory: NDArray[np.uint8]) -> bool:
        """Whether parts can go straight between the disk and the slots of `memory`."""
        return not self.direct or (self.shape.part_bytes % PAGE_BYTES == 0 and memory.ctypes.data % PAGE_BYTES == 0)

    def cut(self, run_bytes: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Share runs out among jobs; return each job's first run and the one behind its last."""
        if not len(run_bytes):
            return []
        behind = np.cumsum(run_bytes)
        job_bytes = min(max(int(behind[-1]) // self.threads, LEAST_JOB_BYTES), MOST_RUN_BYTES)
        job = (behind - run_bytes) // job_bytes
        starts = np.concatenate([[0], np.flatnonzero(np.diff(job)) + 1, [len(job)]]).tolist()
        return list(pairwise(starts))


class Request(NamedTuple):
    """What was asked of `SlabStore.read`."""

    keys: U64
    layers: NDArray[np.int32]
    parts: Ids
    memory: NDArray[np.uint8]
    slots: Ids


class Reads(Ticket):
    """A request to read units.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    disk : Disk
        Where from.
    memory : uint8 [slots, part_bytes]
        Where to.
    units : intp
        Positions among the answers of the units to be read.
    slots : int32
        Where in `memory`, for each of `units`; so are the following.
    places : int64
        Places of their records.
    parts : int32
        Which part of the record.
    seeds, checksums : uint64
        What a part must add up to.

    Attributes
    ----------
    held : intp
        `units` as given.
    """

    urgent = True

    def __init__(
        self, number: int, answers: int, disk: Disk, memory: NDArray[np.uint8], units: NDArray[np.intp], slots: Ids,
        places: NDArray[np.int64], parts: Ids, seeds: U64, checksums: U64,
    ) -> None:  # fmt: skip
        super().__init__(number, answers)
        self.held = units
        self._disk, self._flat = disk, memory.data.cast("B")
        length = disk.shape.part_bytes
        address = disk.address(places) + PAGE_BYTES + parts.astype(np.int64) * length
        order = np.argsort(address, kind="stable")
        self._units, slots, address, places = units[order], slots[order], address[order], places[order]
        gap = np.diff(address) - length
        new = np.ones(len(order), np.bool_)
        new[1:] = (gap < 0) | (gap > MOST_GAP_BYTES) | (np.diff(places // disk.shape.places) != 0)
        begin = np.maximum.accumulate(np.where(new, address, 0)) if len(new) else address
        new[1:] |= np.diff((address - begin) // disk.run_bytes) != 0
        piece = new.copy()
        piece[1:] |= (gap != 0) | (np.diff(slots) != 1)
        first = np.flatnonzero(new)
        last = np.concatenate([first[1:], [len(new)]]) - 1 if len(new) else first
        spans = address[last] + length - address[first]
        pieces = np.add.reduceat(piece.astype(np.int64), first) if len(new) else first
        straight = (spans >= pieces * LEAST_PIECE_BYTES) & (2 * pieces <= MOST_PIECES) & disk.whole_pages(memory)
        slab, inside = np.divmod(address, disk.shape.slab_bytes)
        self._inside, self._slots, self._piece = inside.tolist(), slots.tolist(), piece.tolist()
        self._seeds, self._sums = seeds[order].tolist(), checksums[order].tolist()
        self._runs = list(zip(first.tolist(), (last + 1).tolist(), slab[first].tolist(), straight.tolist(), strict=True))
        self._cuts = disk.cut(spans)
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Read some runs; judge their units."""
        for first, behind, slab, straight in self._runs[slice(*self._cuts[job])]:
            fd = self._disk.fds.get(slab)
            if fd is None:
                continue
            try:
                good = (self._straight if straight else self._copied)(fd, first, behind, scratch)
            except OSError as error:
                self.errors.append(error)
                continue
            self.ok[self._units[first:behind]] = good

    def _straight(self, fd: int, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[bool]:
        """Read into the slots, gaps into scratch."""
        length, flat, inside, slots = self._disk.shape.part_bytes, self._flat, self._inside, self._slots
        pieces: list[Buffer] = []
        starts = [unit for unit in range(first, behind) if self._piece[unit]]
        for start, end in zip(starts, [*starts[1:], behind], strict=True):
            pieces.append(flat[slots[start] * length : (slots[end - 1] + 1) * length])
            gap = inside[end] - inside[end - 1] - length if end < behind else 0
            if gap:
                pieces.append(scratch[:gap].data)
        got = inside[first] + read_fully(self._disk.files, fd, pieces, inside[first])
        seeds, sums = self._seeds, self._sums
        return [
            inside[unit] + length <= got
            and xxh3_64_intdigest(flat[slots[unit] * length : (slots[unit] + 1) * length], seeds[unit]) == sums[unit]
            for unit in range(first, behind)
        ]

    def _copied(self, fd: int, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[bool]:
        """Read whole pages into scratch; copy what is right."""
        length, flat, inside = self._disk.shape.part_bytes, self._flat, self._inside
        begin = inside[first] // PAGE_BYTES * PAGE_BYTES
        end = -(-(inside[behind - 1] + length) // PAGE_BYTES) * PAGE_BYTES
        view = scratch.data
        got = read_fully(self._disk.files, fd, [view[: end - begin]], begin)
        good = []
        for unit in range(first, behind):
            start = inside[unit] - begin
            part = view[start : start + length]
            right = start + length <= got and xxh3_64_intdigest(part, self._seeds[unit]) == self._sums[unit]
            if right:
                flat[self._slots[unit] * length : (self._slots[unit] + 1) * length] = part
            good.append(right)
        return good


class Writes(Ticket):
    """A request to write records.

    Parameters
    ----------
    number : int
        See `Ticket`.
    disk : Disk
        Where to.
    memory : uint8 [slots, part_bytes]
        Where from; unchanged until answered.
    slots : int32 [records, parts]
        Where in `memory` the parts are.
    keys : uint64
        Of each record; so are the following.
    layers : int32
        Of each record.
    places : int64
        Free places, ascending.
    generation : int
        Of all of them.
    seeds : uint64 [records, parts]
        Of the checksums.

    Attributes
    ----------
    checksums : uint64 [records, parts]
        Made by the threads.
    """

    def __init__(
        self, number: int, disk: Disk, memory: NDArray[np.uint8], slots: NDArray[np.int32], keys: U64,
        layers: NDArray[np.int32], places: NDArray[np.int64], generation: int, seeds: U64,
    ) -> None:  # fmt: skip
        super().__init__(number, len(keys))
        shape = disk.shape
        self._disk, self._memory, self._flat = disk, memory, memory.data.cast("B")
        self.keys, self.layers, self.places, self.generation = keys, layers, places, generation
        self.checksums = np.zeros(slots.shape, np.uint64)
        self.queued_bytes = len(keys) * shape.record_bytes
        self._slots, self._seeds = slots, seeds.tolist()
        new = np.ones(len(keys), np.bool_)
        new[1:] = (np.diff(places) != 1) | (np.diff(places // shape.places) != 0)
        number_in_run = np.arange(len(new)) - np.maximum.accumulate(np.where(new, np.arange(len(new)), 0)) if len(new) else new
        new |= number_in_run % (disk.run_bytes // shape.record_bytes) == 0
        first = np.flatnonzero(new)
        behind = np.concatenate([first[1:], [len(new)]]) if len(new) else first
        pieces = 1 + np.count_nonzero(np.diff(slots, axis=1) != 1, axis=1)
        pieces = np.add.reduceat(pieces, first) if len(new) else first
        straight = (behind - first) * shape.payload_bytes >= pieces * LEAST_PIECE_BYTES
        straight &= (pieces + 2 * (behind - first) <= MOST_PIECES) & disk.whole_pages(memory)
        self._runs = list(zip(first.tolist(), behind.tolist(), straight.tolist(), strict=True))
        self._cuts = disk.cut((behind - first) * shape.record_bytes)
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Write some runs of neighbouring records."""
        shape = self._disk.shape
        for first, behind, straight in self._runs[slice(*self._cuts[job])]:
            pieces = self._pieces(first, behind, scratch) if straight else self._gathered(first, behind, scratch)
            slab, offset = int(self.places[first]) // shape.places, shape.place_offset(int(self.places[first]))
            try:
                write_fully(self._disk.files, self._disk.fds[slab], pieces, offset)
            except OSError as error:
                self.errors.append(error)
                continue
            self.ok[first:behind] = True

    def _pieces(self, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[Buffer]:
        """Headers in scratch, parts where they are."""
        shape, flat = self._disk.shape, self._flat
        length, rest = shape.part_bytes, shape.record_bytes - PAGE_BYTES - shape.payload_bytes
        pieces: list[Buffer] = []
        for number, record in enumerate(range(first, behind)):
            slots = self._slots[record].tolist()
            parts = [flat[slot * length : (slot + 1) * length] for slot in slots]
            header = scratch[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
            self._head(record, header, parts)
            pieces.append(header.data)
            start = 0
            for part in range(1, len(slots) + 1):
                if part == len(slots) or slots[part] != slots[part - 1] + 1:
                    pieces.append(flat[slots[start] * length : (slots[part - 1] + 1) * length])
                    start = part
            if rest:
                pieces.append(_ZEROS[:rest])
        return pieces

    def _gathered(self, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[Buffer]:
        """Headers and parts in scratch."""
        shape = self._disk.shape
        length = shape.part_bytes
        for number, record in enumerate(range(first, behind)):
            room = scratch[number * shape.record_bytes : (number + 1) * shape.record_bytes]
            payload = room[PAGE_BYTES : PAGE_BYTES + shape.payload_bytes].reshape(shape.parts, length)
            np.take(self._memory, self._slots[record], axis=0, out=payload, mode="clip")
            view = room.data[PAGE_BYTES:]
            self._head(record, room[:PAGE_BYTES], [view[part * length : (part + 1) * length] for part in range(shape.parts)])
            room[PAGE_BYTES + shape.payload_bytes :] = 0
        return [scratch.data[: (behind - first) * shape.record_bytes]]

    def _head(self, record: int, header: NDArray[np.uint8], parts: list[Buffer]) -> None:
        """Make the checksums of a record and its header page."""
        sums = [xxh3_64_intdigest(part, seed) for part, seed in zip(parts, self._seeds[record], strict=True)]
        self.checksums[record] = sums
        identity = self._disk.identity
        key, layer = int(self.keys[record]), int(self.layers[record])
        write_header(header, identity, key, layer, self.generation, sums, self._disk.shape.payload_bytes)


_ZEROS = memoryview(bytes(PAGE_BYTES))
