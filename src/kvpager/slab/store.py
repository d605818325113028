"""The backing store: records of blocks on disk, written behind and read back checked.

A write is *acknowledged* when its answer is handed out: it then survives the death of the process. After `sync` it is
*durable*: it survives a power cut. What does not match its checksum, made of its bytes and of what it is, is never served.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import InvariantError, StorageFull, StoreError, TierBusy
from kvpager.slab.contents import Contents, Stats
from kvpager.slab.files import Files
from kvpager.slab.io import Pool, Ticket, Workers
from kvpager.slab.newkeys import NewKeys
from kvpager.slab.reads import Reading, Reads, Request
from kvpager.slab.record import U64, Shape
from kvpager.slab.scan import Damage
from kvpager.slab.table import Records
from kvpager.slab.transfer import Lender
from kvpager.slab.writes import Wipes, Writes

__all__ = ["SlabStore"]

Answer = tuple[int, NDArray[np.bool_]]


class SlabStore:
    """Records of blocks in preallocated slab files. For one thread of one process.

    Parameters
    ----------
    path : path
        The directory. Made, for its owner alone, if it is not there.
    parts, part_bytes : int
        A record's payload: one part a KV head.
    layers : int
        Layers of a block: a record is one block in one layer.
    fingerprint : str
        Of the model and the layout. A store keeps to one.
    capacity_bytes : int
        Disk to be used at most, in whole slabs.
    slab_bytes : int
        Bytes of a slab file, a multiple of 4,096.
    threads : int
        I/O threads.
    queue_bytes : int
        Of writes under way at most; a single larger one is let through when nothing else is.
    files : Files, optional
        The file layer.
    tag_bytes : int
        Of what the caller wants to stand beside each record.
    workers : Workers, optional
        I/O threads shared with other stores, in place of `threads` of its own.
    wake : callable, optional
        Called by an I/O thread when there is an answer.

    Attributes
    ----------
    shape : Shape
        What all its slabs say.
    capacity_bytes : int
        As given.
    stats : Stats
        What it did and what it met.
    new_keys : callable
        Given a count, returns keys that no block of this store has had, nor will have after a crash.

    Raises
    ------
    StoreError
        For a directory that is in use, cannot be written, or belongs to another shape, fingerprint or format; for a
        capacity below one slab.
    StorageFull
        If there is no room for the first slab.
    """

    def __init__(
        self, path: str | PathLike[str], *, parts: int, part_bytes: int, layers: int, fingerprint: str, capacity_bytes: int,
        slab_bytes: int = 64 << 20, threads: int = 4, queue_bytes: int = 64 << 20, files: Files | None = None,
        tag_bytes: int = 0, workers: Workers | None = None, wake: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.shape = Shape(parts, part_bytes, layers, slab_bytes, fingerprint, tag_bytes)
        self.capacity_bytes, self.stats = capacity_bytes, Stats()
        self.shape.check()
        if capacity_bytes < slab_bytes:
            raise StoreError(f"a store of {capacity_bytes:,} bytes has no room for a slab of {slab_bytes:,}: give it more")
        self._contents = Contents(Path(path), self.shape, capacity_bytes, threads, files or Files(), self.stats)
        self._disk = self._contents.disk
        self._pool = Pool(threads, self._disk.scratch_bytes, workers, wake)
        self._queue_bytes, self._next_ticket, self._closed = queue_bytes, 0, False
        self.new_keys = NewKeys(self._contents.table.keys)
        self._open: dict[int, Ticket] = {}
        self._asked: dict[int, Request] = {}  # while the index is only a hint: to be read again if it misled
        self._answers: dict[int, NDArray[np.bool_]] = {}
        self._forgotten: set[int] = set()
        self._cut: dict[int, int] = {}  # keys forgotten while writes were under way, and the generation of that moment
        self._freed: deque[tuple[int, NDArray[np.int64]]] = deque()  # places, and the ticket that may touch them last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def used_bytes(self) -> int:
        """Payload of the records that are held."""
        return self.records * self.shape.payload_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of the slab files."""
        return len(self._contents.folder.fds) * self.shape.slab_bytes

    @property
    def records(self) -> int:
        """Records that are held."""
        return self._contents.table.records

    @property
    def blocks(self) -> int:
        """Blocks that are held, in at least one layer."""
        return len(self._contents.table.keys())

    def bytes_of(self, keys: U64) -> int:
        """Payload that is held of the blocks `keys`."""
        return self._contents.table.count(keys) * self.shape.payload_bytes

    def write(
        self, keys: U64, layers: NDArray[np.int32], memory: NDArray[np.uint8], slots: NDArray[np.int32],
        tags: NDArray[np.uint8] | None = None, lender: Lender | None = None,
    ) -> int:  # fmt: skip
        """Start to write records, and return the ticket.

        Parameters
        ----------
        keys : uint64 [records]
            Block keys.
        layers : int32 [records]
            Layer of each.
        memory : uint8 [slots, part_bytes]
            Where the parts are; unchanged until the answer.
        slots : int32 [records, parts]
            Which slot each part is in.
        tags : uint8 [records, tag_bytes], optional
            What stands beside each record; zeros if not given.
        lender : Lender, optional
            Has the payloads when a thread comes to them, in place of `memory`.

        Raises
        ------
        TierBusy
            If the queue is full, or room comes free with what is under way: wait for answers, then try again.
        StorageFull
            If there is no room. Nothing was written.
        """
        self._check(memory)
        if slots.shape != (len(keys), self.shape.parts):
            raise InvariantError(f"slots {slots.shape} for {len(keys)} records of {self.shape.parts} parts: give one a part")
        length = len(keys) * self.shape.record_bytes
        if self._pool.queued_bytes and self._pool.queued_bytes + length > self._queue_bytes:
            raise TierBusy(f"{self._pool.queued_bytes:,} bytes wait to be written, of {self._queue_bytes:,}: wait for answers")
        self._settle()
        try:
            places = self._contents.take(len(keys))
        except StorageFull as full:
            if self._freed:
                raise TierBusy("room comes free when what is under way has ended: wait for answers") from full
            raise
        self._contents.changing()
        generation = self._contents.generation = self._contents.generation + 1
        if self._contents.hinted:
            self._forgotten.difference_update(keys.tolist())
        tags = np.zeros((len(keys), self.shape.tag_bytes), np.uint8) if tags is None else tags
        key, layer = keys.copy(), layers.copy()
        return self._start(Writes(self._number(), self._disk, memory, slots, key, layer, places, generation, tags, lender))

    def read(
        self, keys: U64, layers: NDArray[np.int32], parts: Ids, memory: NDArray[np.uint8], slots: Ids,
    ) -> int:  # fmt: skip
        """Start to read units into slots, and return the ticket. A unit that is answered with False may hold anything.

        Parameters
        ----------
        keys : uint64 [units]
            Block keys.
        layers, parts : int32 [units]
            Layer and part of each.
        memory : uint8 [slots, part_bytes]
            Where to.
        slots : int32 [units]
            Which slot each one goes to.
        """
        self._check(memory)
        return self._ask(Request(keys, layers, parts, memory, slots))

    def poll(self) -> list[Answer]:
        """Return the answers that have come in: ticket, and whether each record or unit is good."""
        self._settle()
        answers, self._answers = list(self._answers.items()), {}
        return answers

    def wait(self, tickets: Collection[int], deadline_s: float) -> list[Answer]:
        """Wait until all `tickets` are answered, at most `deadline_s` seconds, and return their answers."""
        deadline = time.monotonic() + deadline_s
        self._settle()
        while (left := [ticket for ticket in tickets if ticket in self._open]) and time.monotonic() < deadline:
            self._pool.wait(set(left), deadline)
            self._settle()
        return [(ticket, self._answers.pop(ticket)) for ticket in tickets if ticket in self._answers]

    def forget(self, keys: U64) -> None:
        """Drop the blocks `keys`; their room is free when what is under way has ended. Unknown keys are no error."""
        self._settle()
        if not len(keys):
            return
        names = keys.tolist()
        if any(isinstance(ticket, Writes) for ticket in self._open.values()):
            self._cut.update(dict.fromkeys(names, self._contents.generation))
        if self._contents.hinted:
            self._forgotten.update(names)
        self._free(self._contents.drop(names))

    def sync(self) -> None:
        """Make everything that was answered durable, and bring the index up to date.

        Raises
        ------
        StoreError
            If the disk refuses.
        """
        self._settle()
        self._contents.sync(settled=not any(isinstance(ticket, Writes) for ticket in self._open.values()))

    def holds(self, keys: U64, layers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether the records (key, layer) are acknowledged and not forgotten, bool [records]."""
        self._settle()
        return self._contents.table.find(keys, layers) >= 0

    def keep_only(self, keys: U64) -> int:
        """Forget all blocks but `keys`, delete slabs that are empty then, and return the bytes of the records that went."""
        self.drain()
        before = self._contents.table.records
        have = self._contents.table.keys()
        self.forget(have[~np.isin(have, keys)])
        self._settle()
        self._contents.tidy()
        self._contents.changing()
        self.sync()
        return (before - self._contents.table.records) * self.shape.record_bytes

    def verify(self) -> list[Damage]:
        """Read everything back; return what is damaged, what was found at opening included."""
        self.drain()
        return self._contents.verify()

    def drain(self) -> None:
        """Wait until nothing is under way; the answers stay to be asked for."""
        while self._open:
            self._pool.wait(set(self._open), float("inf"))
            self._settle()

    def check(self) -> None:
        """Raise `InvariantError` if table, places and capacity contradict each other."""
        self._settle()
        self._contents.check()

    def close(self) -> None:
        """Finish what is under way, make it durable, and give the directory back."""
        if self._closed:
            return
        self._closed = True
        try:
            self.drain()
            self.sync()
        finally:
            self._pool.close()
            self._contents.close()

    def _check(self, memory: NDArray[np.uint8]) -> None:
        if self._closed:
            raise InvariantError("the store is closed: open it again")
        fits = memory.dtype == np.uint8 and memory.ndim == 2 and memory.shape[1] == self.shape.part_bytes
        if not fits or not memory.flags.c_contiguous:
            raise InvariantError(f"memory {memory.dtype} {memory.shape} is not contiguous uint8 [slots, {self.shape.part_bytes}]")

    def _number(self) -> int:
        self._next_ticket += 1
        return self._next_ticket

    def _start(self, ticket: Ticket) -> int:
        self._open[ticket.number] = ticket
        self._pool.submit(ticket)
        return ticket.number

    def _ask(self, request: Request) -> int:
        """Start to read what is asked for."""
        self._settle()
        number = self._number()
        if self._contents.hinted:
            self._asked[number] = request.copied()
        return self._start(self._reads(number, request, None))

    def _reads(self, number: int, request: Request, units: NDArray[np.intp] | None) -> Reading:
        """A ticket for those of the request's `units`, or of all, that are held."""
        return Reads(number, len(request.keys), self._disk, request.held(self._contents.table, units))

    def _settle(self) -> None:
        """Take in what has finished."""
        wrong = self._take_in()
        if wrong and self._contents.hinted and self._read_again(wrong):
            return
        for ticket in wrong:
            self._answer(ticket)
        oldest = self._pool.oldest()
        while self._freed and (oldest is None or self._freed[0][0] < oldest):
            self._contents.give(self._freed.popleft()[1])

    def _read_again(self, wrong: list[Reading]) -> bool:
        """The index may have misled: fill the table from the headers, and read what was `wrong` from where they say."""
        self._pool.wait(None, float("inf"))
        wrong += self._take_in()
        if not self._contents.rebuild(self._forgotten):
            return False
        self._freed.clear()
        for ticket in wrong:
            again = self._reads(ticket.number, self._asked[ticket.number], np.flatnonzero(~ticket.ok))
            again.ok[ticket.ok] = True
            self._start(again)
        self._asked.clear()
        self._forgotten.clear()
        return True

    def _take_in(self) -> list[Reading]:
        """Answer what has finished; return the reads that met something wrong, which are not answered."""
        wrong: list[Reading] = []
        failure: Exception | None = None
        for ticket in self._pool.collect():
            self.stats.io_errors += len(ticket.errors)
            if ticket.failure is not None:
                failure = ticket.failure
            if isinstance(ticket, Writes):
                self._install(ticket)
            elif isinstance(ticket, Wipes):
                self._contents.wiped(ticket.places)
                self._free(ticket.places[ticket.ok])
            elif isinstance(ticket, Reading) and not ticket.ok[ticket.held].all():
                wrong.append(ticket)
                continue
            self._answer(ticket)
        if failure is not None:
            raise failure
        return wrong

    def _answer(self, ticket: Ticket) -> None:
        good = int(np.count_nonzero(ticket.ok))
        if isinstance(ticket, Reading):
            self.stats.read_units += good
            self.stats.read_bytes += good * self.shape.part_bytes
            self.stats.checksum_failures += int(np.count_nonzero(~ticket.ok[ticket.held]))
            self._asked.pop(ticket.number, None)
        elif isinstance(ticket, Writes):
            self.stats.written_records += good
            self.stats.written_bytes += good * self.shape.payload_bytes
        del self._open[ticket.number]
        self._answers[ticket.number] = ticket.ok

    def _install(self, ticket: Writes) -> None:
        """Take in what was written and not forgotten since; free the places of the rest."""
        alive = ticket.ok.copy()
        if self._cut:
            alive &= [self._cut.get(key, -1) < ticket.generation for key in ticket.keys.tolist()]
        generations = np.full(len(alive), ticket.generation, np.uint64)
        records = Records(ticket.keys, ticket.layers, ticket.places, generations, ticket.checksums, ticket.tags)
        self._contents.install(records.some(alive))
        self._free(ticket.places[~alive])
        if not any(isinstance(other, Writes) and other is not ticket for other in self._open.values()):
            self._cut.clear()

    def _free(self, places: NDArray[np.int64]) -> None:
        """Give `places` back when nothing that is under way can touch them."""
        if len(places):
            self._freed.append((self._next_ticket, places))
