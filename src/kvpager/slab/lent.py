"""Reading blocks for callers: records of one part, straight into the memory that a caller lends, or copied to it.

The same as `kvpager.slab.reads` for what it reads; without slots and parts there is less to work out, which tells where a
request is few blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.slab.files import PAGE_BYTES, Buffer, read_fully
from kvpager.slab.reads import Held, Reading
from kvpager.slab.transfer import LEAST_PIECE_BYTES, MOST_GAP_BYTES, Disk, Lender

__all__ = ["LentReads"]

_Block = tuple[int, int, int, int, int]
"""Slab, where in it the payload begins, position among the answers, seed and checksum."""
_WIPED = bytes(8)
"""How a header begins that was wiped."""


class LentReads(Reading):
    """A request to read blocks for callers.

    Parameters
    ----------
    number, answers : int
        See `Ticket`.
    disk : Disk
        Where from.
    held : Held
        What is to be read.
    lender : Lender
        The callers.
    wary : bool
        Whether a record whose header was wiped may still be in the table, since that came from an index.
    """

    def __init__(self, number: int, answers: int, disk: Disk, held: Held, lender: Lender, *, wary: bool) -> None:
        _, units, places, seeds, checksums = held
        super().__init__(number, answers, units)
        self._disk, self._lender = disk, lender
        self._before = PAGE_BYTES if wary else 0  # of a header is read before its payload
        slabs, slots = np.divmod(places, disk.places)
        payloads = (slots * disk.record_bytes + 2 * PAGE_BYTES).tolist()
        self._blocks = sorted(zip(slabs.tolist(), payloads, units.tolist(), seeds.tolist(), checksums.tolist(), strict=True))
        self._runs: list[tuple[int, int]] = []
        first, length = 0, disk.part_bytes
        for block in range(1, len(self._blocks) + 1):
            if block < len(self._blocks):
                (slab, last, *_), (same, payload, *_) = self._blocks[block - 1], self._blocks[block]
                near = slab == same and 0 < payload - last - length <= MOST_GAP_BYTES
                if near and payload - self._blocks[first][1] + disk.record_bytes <= disk.run_bytes:
                    continue
            self._runs.append((first, block))
            first = block
        self._cuts = disk.cut([self._blocks[end - 1][1] - self._blocks[start][1] + length for start, end in self._runs])
        self.jobs = len(self._cuts)

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Read some runs; judge their blocks."""
        for run in self._runs[slice(*self._cuts[job])]:
            blocks = self._blocks[slice(*run)]
            fd = self._disk.fds.get(blocks[0][0])
            if fd is None:
                continue
            numbers = [block[2] for block in blocks]
            lent = self._lender.lend_all(numbers) if self._disk.part_bytes >= LEAST_PIECE_BYTES else []
            try:
                good = self._read(fd, blocks, lent, scratch)
            except OSError as error:
                self.errors.append(error)
                continue
            finally:
                self._lender.give_all_back(numbers[: len(lent)])
            for number, right in zip(numbers, good, strict=True):
                self.ok[number] = right

    def _read(self, fd: int, blocks: list[_Block], lent: list[Buffer], scratch: NDArray[np.uint8]) -> list[bool]:
        """Read neighbours, what is not lent into scratch; hand over what is right."""
        length, view = self._disk.part_bytes, scratch.data
        begin = end = blocks[0][1] - self._before
        pieces: list[Buffer] = []
        parts, at = [], 0  # where a payload, or what follows on its header, stands in scratch; how much of that is used
        for number, (_, payload, *_) in enumerate(blocks):
            gap = payload - end
            if gap and lent:
                pieces.append(view[at : at + gap])
            at += gap
            parts.append(at)
            if lent:
                pieces.append(lent[number])
            else:
                at += length
            end = payload + length
        got = begin + read_fully(self._disk.files, fd, pieces or [view[:at]], begin)
        good = []
        for number, (_, payload, unit, seed, checksum) in enumerate(blocks):
            start = parts[number]
            memory = lent[number] if lent else view[start : start + length]
            right = payload + length <= got and xxh3_64_intdigest(memory, seed) == checksum
            if self._before and view[start - PAGE_BYTES : start - PAGE_BYTES + len(_WIPED)] == _WIPED:
                right = False
            if right and not lent:
                self._lender.copy(unit, scratch[start : start + length])
            good.append(right)
        return good
