"""Reading blocks for callers: records of one part, straight into the memory that a caller lends, or copied to it.

The same as `kvpager.slab.reads` for what it reads; without slots and parts there is less to work out, which tells where a
request is few blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.slab.files import PAGE_BYTES, Buffer, read_fully
from kvpager.slab.io import Ticket
from kvpager.slab.record import U64
from kvpager.slab.transfer import LEAST_PIECE_BYTES, MOST_GAP_BYTES, Disk, Lender

__all__ = ["LentReads"]

_WIPED = bytes(8)
"""How a header begins that was wiped."""


class LentReads(Ticket):
    """A request to read blocks for callers.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    disk : Disk
        Where from.
    lender : Lender
        The callers.
    wary : bool
        Whether a record whose header was wiped may still be in the table, since that came from an index.
    units : intp
        Positions among the answers of the blocks that are held.
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
        self, number: int, answers: int, disk: Disk, lender: Lender, wary: bool, units: NDArray[np.intp],
        places: NDArray[np.int64], seeds: U64, checksums: U64,
    ) -> None:  # fmt: skip
        super().__init__(number, answers)
        self.held, self._disk, self._lender, self._wary = units, disk, lender, wary
        columns = zip(places.tolist(), units.tolist(), seeds.tolist(), checksums.tolist(), strict=True)
        self._blocks = sorted(columns)
        self._runs: list[tuple[int, int]] = []
        first, step = 0, disk.record_bytes
        for block in range(1, len(self._blocks) + 1):
            if block < len(self._blocks):
                start, last, place = self._blocks[first][0], self._blocks[block - 1][0], self._blocks[block][0]
                near = (place - last - 1) * step + PAGE_BYTES <= MOST_GAP_BYTES and place // disk.places == last // disk.places
                if near and place > last and (place - start + 1) * step <= disk.run_bytes:
                    continue
            self._runs.append((first, block))
            first = block
        self._cuts = disk.cut([(self._blocks[end - 1][0] - self._blocks[start][0] + 1) * step for start, end in self._runs])
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Read some runs; judge their blocks."""
        disk = self._disk
        for first, behind in self._runs[slice(*self._cuts[job])]:
            place = self._blocks[first][0]
            fd = disk.fds.get(place // disk.places)
            if fd is None:
                continue
            lent = self._lent(first, behind)
            try:
                good = self._read(fd, first, behind, lent, scratch)
            except OSError as error:
                self.errors.append(error)
                continue
            finally:
                for number in range(first, first + len(lent)):
                    self._lender.give_back(self._blocks[number][1])
            self.ok[[self._blocks[number][1] for number in range(first, behind)]] = good

    def _lent(self, first: int, behind: int) -> list[Buffer]:
        """The callers' memory of a run; nothing if not all of it is to be had."""
        lent: list[Buffer] = []
        if self._disk.part_bytes < LEAST_PIECE_BYTES:
            return lent
        for number in range(first, behind):
            memory = self._lender.lend(self._blocks[number][1])
            if memory is None:
                for other in range(first, number):
                    self._lender.give_back(self._blocks[other][1])
                return []
            lent.append(memory)
        return lent

    def _read(self, fd: int, first: int, behind: int, lent: list[Buffer], scratch: NDArray[np.uint8]) -> list[bool]:
        """Read a run, what is not lent into scratch; hand over what is right."""
        disk, length, blocks = self._disk, self._disk.part_bytes, self._blocks
        begin = disk.shape.place_offset(blocks[first][0]) + (0 if self._wary else PAGE_BYTES)
        pieces: list[Buffer] = []
        heads, at, end = [], 0, begin  # where a header stands in scratch; how much of scratch, and of the file, is used
        for number in range(first, behind):
            payload = disk.shape.place_offset(blocks[number][0]) + PAGE_BYTES
            if payload > end and lent:
                pieces.append(scratch[at : at + payload - end].data)
            at += payload - end
            heads.append(at - PAGE_BYTES)
            if lent:
                pieces.append(lent[number - first])
            else:
                at += length
            end = payload + length
        got = begin + read_fully(disk.files, fd, pieces or [scratch[:at].data], begin)
        good = []
        for number, head in zip(range(first, behind), heads, strict=True):
            place, unit, seed, checksum = blocks[number]
            part = lent[number - first] if lent else scratch[head + PAGE_BYTES : head + PAGE_BYTES + length].data
            right = disk.shape.place_offset(place) + PAGE_BYTES + length <= got and xxh3_64_intdigest(part, seed) == checksum
            if self._wary and scratch[head : head + len(_WIPED)].tobytes() == _WIPED:
                right = False
            if right and not lent:
                self._lender.copy(unit, scratch[head + PAGE_BYTES : head + PAGE_BYTES + length])
            good.append(right)
        return good
