"""Reading records: which units move in one call, where to, and whether they are right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.core import Ids
from kvpager.slab.files import PAGE_BYTES, Buffer, read_fully
from kvpager.slab.io import Ticket
from kvpager.slab.record import U64
from kvpager.slab.table import Table
from kvpager.slab.transfer import LEAST_PIECE_BYTES, MOST_GAP_BYTES, MOST_PIECES, Disk, Lender

__all__ = ["Held", "Reading", "Reads", "Request"]


class Request(NamedTuple):
    """What was asked; what has a `lender` needs no memory."""

    keys: U64
    layers: NDArray[np.int32]
    parts: Ids
    memory: NDArray[np.uint8]
    slots: Ids
    lender: Lender | None = None

    def some(self, units: NDArray[np.intp]) -> Request:
        """The request for some of its units."""
        return Request(self.keys[units], self.layers[units], self.parts[units], self.memory, self.slots[units], self.lender)

    def copied(self) -> Request:
        """The same, of which the caller's arrays are no part."""
        return Request(self.keys.copy(), self.layers.copy(), self.parts.copy(), self.memory, self.slots.copy(), self.lender)

    def held(self, table: Table, units: NDArray[np.intp] | None) -> Held:
        """Those of its `units`, or of all, that `table` has."""
        some = self if units is None else self.some(units)
        places, seeds, sums = table.find_units(some.keys, some.layers, some.parts)
        if places.min(initial=0) < 0:
            there = np.flatnonzero(places >= 0)
            units = there if units is None else units[there]
            some, places, seeds, sums = some.some(there), places[there], seeds[there], sums[there]
        elif units is None:
            units = np.arange(len(places))
        return Held(some, units, places, seeds, sums)


class Held(NamedTuple):
    """Units of a request that are held."""

    request: Request
    """For these only."""
    units: NDArray[np.intp]
    """Their positions among the answers."""
    places: NDArray[np.int64]
    """Of their records."""
    seeds: U64
    """Of the checksum of each."""
    checksums: U64
    """What each must add up to."""


class Reading(Ticket):
    """A request to read.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    held : intp
        Positions among the answers of what is held.
    """

    urgent = True

    def __init__(self, number: int, answers: int, held: NDArray[np.intp]) -> None:
        super().__init__(number, answers)
        self.held = held


class Reads(Reading):
    """A request to read units.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    disk : Disk
        Where from.
    held : Held
        What is to be read.
    """

    def __init__(self, number: int, answers: int, disk: Disk, held: Held) -> None:
        request, units, places, seeds, checksums = held
        super().__init__(number, answers, units)
        self._disk, self._flat = disk, request.memory.data.cast("B")
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
        self._whole_pages = disk.whole_pages(request.memory)
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
        """Read whole pages into scratch; copy what is right."""
        length, flat, inside = self._disk.part_bytes, self._flat, self._inside
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
