"""Writing records, and wiping them: which go in one call, where from, and how their headers are made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.slab.files import PAGE_BYTES, Buffer, write_fully
from kvpager.slab.io import Ticket
from kvpager.slab.record import U64, seeds_of, write_header
from kvpager.slab.transfer import LEAST_PIECE_BYTES, MOST_PIECES, Disk, Lender

__all__ = ["Wipes", "Writes"]


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
    lender : Lender, optional
        Has the payloads, in place of `memory` and `slots`.

    Attributes
    ----------
    checksums : uint64 [records, parts]
        Made by the threads.
    """

    def __init__(
        self, number: int, disk: Disk, memory: NDArray[np.uint8], slots: NDArray[np.int32], keys: U64,
        layers: NDArray[np.int32], places: NDArray[np.int64], generation: int, tags: NDArray[np.uint8],
        lender: Lender | None = None,
    ) -> None:  # fmt: skip
        super().__init__(number, len(keys))
        self._disk, self._memory, self._lender = disk, memory, lender
        self._flat = memory.data.cast("B") if lender is None else _NOTHING
        self._filled = np.ones(len(keys), np.bool_)
        self.keys, self.layers, self.places, self.generation, self.tags = keys, layers, places, generation, tags
        self.checksums = np.zeros(slots.shape, np.uint64)
        self.queued_bytes = len(keys) * disk.record_bytes
        self._slots = slots
        self._seeds = seeds_of(keys, layers, np.full(1, generation, np.uint64)).tolist()
        self._names = list(zip(keys.tolist(), layers.tolist(), strict=True))
        self._whole_pages = lender is None and disk.whole_pages(memory)
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
            lender = self._lender if disk.part_bytes >= LEAST_PIECE_BYTES else None
            lent = [] if lender is None else lender.lend_all([*range(first, behind)])
            if lent:
                buffers = self._between_headers(first, lent, scratch)
            else:
                buffers = self._pieces(first, behind, scratch) if straight else self._gathered(first, behind, scratch)
            slab, offset = int(self.places[first]) // disk.places, disk.shape.place_offset(int(self.places[first]))
            try:
                write_fully(disk.files, disk.fds[slab], buffers, offset)
            except OSError as error:
                self.errors.append(error)
                continue
            finally:
                if lender is not None:
                    lender.give_all_back([*range(first, first + len(lent))])
            self.ok[first:behind] = self._filled[first:behind]

    def _between_headers(self, first: int, lent: list[Buffer], scratch: NDArray[np.uint8]) -> list[Buffer]:
        """Headers in scratch, the payload of each where its caller has it."""
        pieces: list[Buffer] = []
        for number, memory in enumerate(lent):
            header = scratch.data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
            self._head(first + number, header, [memory])
            pieces += [header, memory]
        return pieces

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
            if self._lender is None:
                np.take(self._memory, self._slots[record], axis=0, out=payload.reshape(disk.parts, length), mode="clip")
            elif not self._lender.copy(record, payload):
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
_U64 = (1 << 64) - 1
