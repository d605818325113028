"""Reading and writing records: which bytes move in one call, and whether they go straight to their slots.

Units that are neighbours on disk, or nearly, move in one call. They go straight between disk and slots where the slots are
long runs of whole pages; else through the thread's own scratch memory, because a call with many short pieces is slower
than a copy, and because O_DIRECT moves whole pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.core import Ids
from kvpager.slab.files import PAGE_BYTES, Buffer, Files, aligned, read_fully, write_fully
from kvpager.slab.io import Ticket
from kvpager.slab.record import U64, Shape, seeds_of, write_header

__all__ = ["Deliver", "Disk", "Fill", "Reads", "Request", "Wipes", "Writes"]

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

Deliver = Callable[[int, NDArray[np.uint8]], None]
"""Takes a unit that is right: its number in the request, and its bytes, which are the thread's and soon others."""
Fill = Callable[[int, NDArray[np.uint8]], bool]
"""Fills the payload of a record, by its number in the request; False: it is not to be written."""


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


class Request(NamedTuple):
    """What was asked of `SlabStore.read`; what has `deliver` needs no memory."""

    keys: U64
    layers: NDArray[np.int32]
    parts: Ids
    memory: NDArray[np.uint8]
    slots: Ids
    deliver: Deliver | None = None
    wary: bool = False
    """Whether a record whose header was wiped may still be in the table, since that came from an index. With `deliver` only."""

    def some(self, units: NDArray[np.intp]) -> Request:
        """The request for some of its units."""
        return Request(self.keys[units], self.layers[units], self.parts[units], self.memory, self.slots[units], *self[5:])


class Reads(Ticket):
    """A request to read units.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    disk : Disk
        Where from.
    request : Request
        The units that are held.
    units : intp
        Their positions among the answers.
    places : int64
        Of their records.
    seeds, checksums : uint64
        What each must add up to.

    Attributes
    ----------
    held : intp
        `units` as given.
    """

    urgent = True

    def __init__(
        self, number: int, answers: int, disk: Disk, request: Request, units: NDArray[np.intp],
        places: NDArray[np.int64], seeds: U64, checksums: U64,
    ) -> None:  # fmt: skip
        super().__init__(number, answers)
        self.held = units
        self._disk, self._deliver = disk, request.deliver
        self._before = PAGE_BYTES if request.wary and request.deliver is not None else 0  # what is read before a payload
        self._flat = request.memory.data.cast("B") if request.deliver is None else _NOTHING
        length, slabs = disk.part_bytes, places // disk.places
        inside = (places - slabs * disk.places) * disk.record_bytes + 2 * PAGE_BYTES + request.parts * np.int64(length)
        order = np.argsort(slabs * disk.slab_bytes + inside, kind="stable")
        self._units, slots, inside, slabs = units[order], request.slots[order], inside[order], slabs[order]
        gap = inside[1:] - inside[:-1]
        gap -= length
        new = np.ones(len(order), np.bool_)
        new[1:] = (gap < 0) | (gap > MOST_GAP_BYTES) | (slabs[1:] != slabs[:-1])
        if len(new):
            begin = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
            number_in_run = (inside - inside[begin]) // disk.run_bytes
            new[1:] |= number_in_run[1:] != number_in_run[:-1]
        joins = (gap == 0) & (slots[1:] == slots[:-1] + 1)
        joins &= ~new[1:]
        self._inside, self._slots = inside.tolist(), slots.tolist()
        self._piece = [True, *(~joins).tolist()]
        self._seeds, self._sums = seeds[order].tolist(), checksums[order].tolist()
        first = np.flatnonzero(new)
        starts = first.tolist()
        self._runs = list(zip(starts, [*starts, len(order)][1:], slabs[first].tolist(), strict=True))
        self._whole_pages = request.deliver is None and disk.whole_pages(request.memory)
        self._cuts = disk.cut([self._inside[behind - 1] + length - self._inside[start] for start, behind, _ in self._runs])
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Read some runs; judge their units."""
        for first, behind, slab in self._runs[slice(*self._cuts[job])]:
            fd = self._disk.fds.get(slab)
            if fd is None:
                continue
            pieces = sum(self._piece[first:behind])
            span = self._inside[behind - 1] + self._disk.part_bytes - self._inside[first]
            straight = self._whole_pages and span >= pieces * LEAST_PIECE_BYTES and 2 * pieces <= MOST_PIECES
            try:
                good = (self._straight if straight else self._copied)(fd, first, behind, scratch)
            except OSError as error:
                self.errors.append(error)
                continue
            self.ok[self._units[first:behind]] = good

    def _straight(self, fd: int, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[bool]:
        """Read into the slots, gaps into scratch."""
        length, flat, inside, slots = self._disk.part_bytes, self._flat, self._inside, self._slots
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
        """Read whole pages into scratch; copy, or deliver, what is right."""
        length, flat, inside = self._disk.part_bytes, self._flat, self._inside
        begin = inside[first] // PAGE_BYTES * PAGE_BYTES - self._before
        end = -(-(inside[behind - 1] + length) // PAGE_BYTES) * PAGE_BYTES
        view = scratch.data
        got = read_fully(self._disk.files, fd, [view[: end - begin]], begin)
        good = []
        for unit in range(first, behind):
            start = inside[unit] - begin
            part = view[start : start + length]
            right = start + length <= got and xxh3_64_intdigest(part, self._seeds[unit]) == self._sums[unit]
            if self._before and view[start - PAGE_BYTES : start - PAGE_BYTES + len(_WIPED)] == _WIPED:
                right = False
            elif right and self._deliver is not None:
                self._deliver(int(self._units[unit]), scratch[start : start + length])
            elif right:
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
    tags : uint8 [records, tag_bytes]
        What stands beside them.
    fill : callable, optional
        Gives the payload, in place of `memory` and `slots`.

    Attributes
    ----------
    checksums : uint64 [records, parts]
        Made by the threads.
    """

    def __init__(
        self, number: int, disk: Disk, memory: NDArray[np.uint8], slots: NDArray[np.int32], keys: U64,
        layers: NDArray[np.int32], places: NDArray[np.int64], generation: int, tags: NDArray[np.uint8], fill: Fill | None = None,
    ) -> None:  # fmt: skip
        super().__init__(number, len(keys))
        self._disk, self._memory, self._fill = disk, memory, fill
        self._flat = memory.data.cast("B") if fill is None else _NOTHING
        self._filled = np.ones(len(keys), np.bool_)
        self.keys, self.layers, self.places, self.generation, self.tags = keys, layers, places, generation, tags
        self.checksums = np.zeros(slots.shape, np.uint64)
        self.queued_bytes = len(keys) * disk.record_bytes
        self._slots = slots
        self._seeds = seeds_of(keys, layers, np.full(1, generation, np.uint64)).tolist()
        self._names = list(zip(keys.tolist(), layers.tolist(), strict=True))
        self._whole_pages = fill is None and disk.whole_pages(memory)
        self._runs: list[tuple[int, int]] = []
        at, most, first = places.tolist(), disk.run_bytes // disk.record_bytes, 0
        for record in range(1, len(at) + 1):
            if record == len(at) or at[record] != at[record - 1] + 1 or at[record] % disk.places == 0 or record - first == most:
                self._runs.append((first, record))
                first = record
        self._cuts = disk.cut([(behind - first) * disk.record_bytes for first, behind in self._runs])
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Write some runs of neighbouring records."""
        disk = self._disk
        for first, behind in self._runs[slice(*self._cuts[job])]:
            slots = self._slots[first:behind]
            pieces = len(slots) + int(np.count_nonzero(slots[:, 1:] != slots[:, :-1] + 1))
            straight = len(slots) * disk.payload_bytes >= pieces * LEAST_PIECE_BYTES
            straight &= self._whole_pages and pieces + 2 * len(slots) <= MOST_PIECES
            buffers = self._pieces(first, behind, scratch) if straight else self._gathered(first, behind, scratch)
            slab, offset = int(self.places[first]) // disk.places, disk.shape.place_offset(int(self.places[first]))
            try:
                write_fully(disk.files, disk.fds[slab], buffers, offset)
            except OSError as error:
                self.errors.append(error)
                continue
            self.ok[first:behind] = self._filled[first:behind]

    def _pieces(self, first: int, behind: int, scratch: NDArray[np.uint8]) -> list[Buffer]:
        """Headers in scratch, parts where they are."""
        disk, flat = self._disk, self._flat
        length, rest = disk.part_bytes, disk.record_bytes - PAGE_BYTES - disk.payload_bytes
        pieces: list[Buffer] = []
        for number, record in enumerate(range(first, behind)):
            slots = self._slots[record].tolist()
            parts = [flat[slot * length : (slot + 1) * length] for slot in slots]
            header = scratch.data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
            self._head(record, header, parts)
            pieces.append(header)
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
        disk = self._disk
        length = disk.part_bytes
        for number, record in enumerate(range(first, behind)):
            room = scratch[number * disk.record_bytes : (number + 1) * disk.record_bytes]
            payload = room[PAGE_BYTES : PAGE_BYTES + disk.payload_bytes]
            if self._fill is None:
                np.take(self._memory, self._slots[record], axis=0, out=payload.reshape(disk.parts, length), mode="clip")
            elif not self._fill(record, payload):
                self._filled[record] = False
                room[:PAGE_BYTES] = 0
                continue
            view = room.data[PAGE_BYTES:]
            parts = [view[start : start + length] for start in range(0, disk.payload_bytes, length)]
            self._head(record, room.data[:PAGE_BYTES], parts)
            room[PAGE_BYTES + disk.payload_bytes :] = 0
        return [scratch.data[: (behind - first) * disk.record_bytes]]

    def _head(self, record: int, header: Buffer, parts: list[Buffer]) -> None:
        """Make the checksums of a record and its header page."""
        seed = self._seeds[record]
        sums = [xxh3_64_intdigest(part, (seed + number) & _U64) for number, part in enumerate(parts)]
        self.checksums[record] = sums
        key, layer = self._names[record]
        tag = self.tags[record].tobytes()
        write_header(header, self._disk.identity, key, layer, self.generation, sums, self._disk.payload_bytes, tag)


class Wipes(Ticket):
    """A request to overwrite the headers of records that were dropped: after that no scan finds them.

    Parameters
    ----------
    number : int
        See `Ticket`.
    disk : Disk
        Where.
    places : int64
        Of the records.
    """

    def __init__(self, number: int, disk: Disk, places: NDArray[np.int64]) -> None:
        super().__init__(number, len(places))
        self._disk, self.places = disk, places
        self.jobs = -(-len(places) // _WIPED_TOGETHER)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Wipe some of them."""
        first = job * _WIPED_TOGETHER
        for number, place in enumerate(self.places[first : first + _WIPED_TOGETHER].tolist(), first):
            self._disk.wipe([place])
            self.ok[number] = True


_WIPED_TOGETHER = 16
_ZEROS = memoryview(bytes(PAGE_BYTES))
_NOTHING = memoryview(b"")
_WIPED = bytes(8)
"""How a header begins that was wiped."""
_U64 = (1 << 64) - 1
