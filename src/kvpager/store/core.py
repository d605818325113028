"""What the store decides: what is served, what leaves to make room, what is found again. For one thread.

Order is what keeps a promise here too. A block is found when its record is acknowledged, not before; a block that replaces
another lets it go only when the new one is durable; what leaves is wiped before its room is used for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, groupby

from kvpager.errors import BadInput, StoreError
from kvpager.store.catalogue import Catalogue
from kvpager.store.entry import Entry, entries_of
from kvpager.store.rack import Rack
from kvpager.store.requests import Job, Request
from kvpager.store.room import Room
from kvpager.store.shelf import Shelf

__all__ = ["Core", "StoreStats"]

_MOST_RETIRED = 64
_FOREVER = float("inf")


@dataclass(slots=True)
class StoreStats:
    """What a store did since it was opened. Of blocks asked for: asked = hits + misses + failed + under way."""

    asked: int = 0
    """Blocks that were to be read."""
    hits: int = 0
    """Served."""
    misses: int = 0
    """Not held."""
    failed: int = 0
    """Held, and not served: damaged, refused by the disk, or too late."""
    quarantined: int = 0
    """Of those, blocks that did not match their checksum or could not be read."""
    late: int = 0
    """Of those, blocks that did not come before the deadline."""
    read_bytes: int = 0
    """Of hits."""
    put: int = 0
    """Blocks that were to be written."""
    stored: int = 0
    """Acknowledged."""
    refused: int = 0
    """For which no room could be made, or whose caller had given up."""
    unwritten: int = 0
    """Which the disk refused."""
    written_bytes: int = 0
    """Of those acknowledged."""
    evicted: int = 0
    """Blocks that left to make room."""
    deleted: int = 0
    """Blocks that were deleted."""
    notices: list[str] = field(default_factory=list)
    """What a user should know."""


class Core:
    """The store's mind.

    Parameters
    ----------
    rack : Rack
        Where the blocks are.
    catalogue : Catalogue
        Empty; it is filled from the rack.
    stats : StoreStats
        Counts.
    room : Room
        Makes room.
    quarantine_s : float
        For how long a block that could not be read is not found; a second time, till the store is opened again.
    """

    def __init__(self, rack: Rack, catalogue: Catalogue, stats: StoreStats, room: Room, quarantine_s: float) -> None:
        self.rack, self.catalogue, self.stats, self._journal = rack, catalogue, stats, catalogue.journal
        self._room, self._quarantine_s = room, quarantine_s
        self._writing: dict[bytes, list[Entry]] = {}
        self._dropped: set[int] = set()  # sequences of those being written that were deleted meanwhile
        self._doubles: list[Entry] = []
        self._deletes: list[tuple[bytes, Request, bool]] = []
        self._most_retired = _MOST_RETIRED
        for entry in sorted(self._found(), key=lambda entry: entry.sequence):
            self._journal.found(entry)
            self._install(entry)
        self._sequence = count(max((entry.sequence for entry in [*catalogue, *self._doubles]), default=0) + 1)
        room.retired += self._doubles
        room.shrink()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return all(shelf.idle for shelf in self.rack.shelves.values()) and not self._room.waiting

    @property
    def reading(self) -> int:
        """Blocks that are being read for somebody who waits."""
        return sum(not job.request.given_up for shelf in self.rack.shelves.values() for job in shelf.being_read())

    @property
    def writing(self) -> int:
        """Blocks that are being written, or wait for room."""
        return sum(map(len, self._writing.values()))

    def get(self, jobs: list[Job]) -> None:
        """Begin to read."""
        self.stats.asked += len(jobs)
        for job in jobs:
            self._begin_read(job)
        self._pump()

    def too_late(self, digests: list[bytes]) -> None:
        """Count blocks that did not come in time; who asks next shall not wait for them, too."""
        self.stats.failed += len(digests)
        self.stats.late += len(digests)
        for digest in digests:
            entry = self.catalogue.usable(digest)
            if entry is not None:
                self.catalogue.hide(entry, self._quarantine_s)
                entry.failures = 0
                self._journal.tell("late", entry)

    def put(self, jobs: list[Job], parents: list[bytes], tenant: bytes, namespace: bytes) -> None:
        """Begin to write."""
        for job, parent in zip(jobs, parents, strict=True):
            entry = Entry(job.digest, parent, tenant, namespace, len(job.memory), next(self._sequence))
            self.stats.put += 1
            self._writing.setdefault(job.digest, []).append(entry)
            self._room.waiting.append((job, entry))
        self._pump()

    def contains(self, digests: list[bytes]) -> list[bool]:
        """Whether blocks are there, acknowledged and not in quarantine."""
        return [self.catalogue.usable(digest) is not None for digest in digests]

    def lengths(self, digests: list[bytes]) -> list[int]:
        """Bytes of blocks; -1 of those that are not there."""
        found = [self.catalogue.usable(digest) for digest in digests]
        return [-1 if entry is None else entry.length for entry in found]

    def delete(self, digest: bytes, request: Request) -> None:
        """Drop a block so that no crash brings it back; the request hears when that is sure, and whether it was there."""
        under_way = self._writing.get(digest, [])
        self._dropped.update(entry.sequence for entry in under_way)
        for entry in self._room.retired:
            if entry.digest == digest:
                self._room.let_go(entry)
        self._room.retired = [entry for entry in self._room.retired if entry.digest != digest]
        held = self.catalogue.get(digest)
        if held is not None:
            self.catalogue.remove(held)
            self._room.let_go(held)
            self.stats.deleted += 1
        self._deletes.append((digest, request, held is not None or bool(under_way)))
        self._answer_deletes()

    def flush(self) -> None:
        """Make everything acknowledged durable, and let go what was replaced."""
        self._room.let_go_replaced()

    def settle(self) -> None:
        """Take in what has finished, and begin what can begin."""
        for shelf in list(self.rack.shelves.values()):
            for jobs, ok, written in shelf.finished():
                if written:
                    for (job, entry), good in zip(jobs, ok, strict=True):
                        self._written(job, entry, good)
                else:
                    self._read(jobs, ok)
            if shelf.store.rebuilt():
                self._resync(shelf)
        self._pump()

    def _pump(self) -> None:
        for shelf in self.rack.shelves.values():
            shelf.start_reads()
        if len(self._room.retired) > self._most_retired:
            try:
                self._room.let_go_replaced()
            except StoreError as error:
                self.stats.notices.append(str(error))
                self._most_retired *= 2
        for job, entry in self._room.start_writes():
            self._refuse(job, entry)
        if self._deletes:
            self._answer_deletes()

    def _answer_deletes(self) -> None:
        """Answer for those blocks of which every record that there was, replaced and evicted ones included, is wiped."""
        waiting = []
        for digest, request, there in self._deletes:
            if digest in self._writing or self._room.leaving[digest]:
                waiting.append((digest, request, there))
            elif digest in self._room.unsure:
                request.fail(StoreError("a deleted block could not be overwritten: it may come back; check the disk"))
            else:
                request.result = there
                request.answer(0, there)
        self._deletes = waiting

    def _begin_read(self, job: Job) -> None:
        entry = self.catalogue.usable(job.digest)
        if entry is None:
            if job.answer(False):
                self.stats.misses += 1
                self._journal.tell_of("miss", job.digest)
        elif entry.length != len(job.memory):
            self.stats.misses += job.request.fail(
                BadInput(f"a block of {entry.length:,} bytes does not go into {len(job.memory):,}: give a buffer of its length")
            )
        else:
            self.rack.shelves[entry.size].reads.append((job, entry))

    def _read(self, jobs: list[tuple[Job, Entry]], ok: list[bool]) -> None:
        good = [pair for pair, right in zip(jobs, ok, strict=True) if right]
        for request, some in groupby(good, key=lambda pair: pair[0].request):
            self._served(request, list(some))
        for (job, entry), right in zip(jobs, ok, strict=True):
            if not right:
                self._not_read(job, entry)

    def _served(self, request: Request, some: list[tuple[Job, Entry]]) -> None:
        if not request.answer_some([job.number for job, _ in some], True):
            return
        entries = [entry for _, entry in some]
        for entry in entries:
            if self.catalogue.get(entry.digest) is entry:
                self.catalogue.touch(entry)
        self.stats.hits += len(entries)
        self.stats.read_bytes += sum(entry.length for entry in entries)
        self._journal.read(entries, request.since_s)

    def _not_read(self, job: Job, entry: Entry) -> None:
        if self.catalogue.get(job.digest) is not entry:  # it left, or was replaced, before it could be read
            self._begin_read(job)
        else:
            self.catalogue.hide(entry, _FOREVER if entry.failures else self._quarantine_s)
            self.stats.quarantined += 1
            self._journal.tell("corrupt", entry)
            if job.answer(False):
                self.stats.failed += 1

    def _written(self, job: Job, entry: Entry, ok: bool) -> None:
        self._room.reserved_bytes -= entry.disk_bytes
        self._room.reserved[entry.tenant] -= entry.disk_bytes
        dropped = self._forget_write(entry)
        if not ok:
            if job.request.given_up:
                self.stats.refused += 1
            else:
                self.stats.unwritten += 1
            self._journal.tell("unwritten", entry, cause="given up" if job.request.given_up else None)
            job.answer(False)
            return
        self._journal.stored(entry, job.request.since_s)
        if dropped:
            self._journal.left(entry, "deleted")
            self._room.let_go(entry)
        else:
            self._install(entry)
            self._room.retired += self._doubles
            self._doubles.clear()
        self.stats.stored += 1
        self.stats.written_bytes += entry.length
        job.answer(True)

    def _install(self, entry: Entry) -> None:
        """Make `entry` the block of its name unless a newer one is; the older of two goes to the doubles."""
        held = self.catalogue.get(entry.digest)
        if held is not None and held.sequence > entry.sequence:
            self._journal.left(entry, "replaced")
            self._doubles.append(entry)
            return
        if held is not None:
            self.catalogue.remove(held, "replaced")
            self._doubles.append(held)
            entry.reads = held.reads
        self.catalogue.add(entry)
        if held is not None and held.pinned_until:
            self.catalogue.pin_until(entry, held.pinned_until)

    def _refuse(self, job: Job, entry: Entry) -> None:
        self._forget_write(entry)
        self.stats.refused += 1
        self._journal.tell("refused", entry)
        job.answer(False)

    def _forget_write(self, entry: Entry) -> bool:
        """Say that `entry` is no longer being written; return whether it was deleted meanwhile."""
        rest = self._writing[entry.digest]
        rest.remove(entry)
        if not rest:
            del self._writing[entry.digest]
        dropped = entry.sequence in self._dropped
        self._dropped.discard(entry.sequence)
        return dropped

    def _found(self) -> list[Entry]:
        """The blocks on all shelves; what is no block is dropped."""
        entries = []
        for size, shelf in self.rack.shelves.items():
            found, wrong = entries_of(shelf.store.all(), size)
            entries += found
            if wrong:
                shelf.wipe(wrong, lambda sure: None)
        return entries

    def _resync(self, shelf: Shelf) -> None:
        """The shelf's table was filled anew: so is what the catalogue says of it."""
        found, _ = entries_of(shelf.store.all(), shelf.size)
        there = {entry.key: entry for entry in found}
        for entry in [entry for entry in self.catalogue if entry.size == shelf.size]:
            if entry.key not in there:
                self.catalogue.remove(entry, "lost")
        known = {entry.key for entry in [*self.catalogue, *self._room.retired] if entry.size == shelf.size}
        for entry in sorted(found, key=lambda entry: entry.sequence):
            if entry.key not in known:
                self._journal.found(entry)
                self._install(entry)
        self._room.retired = [entry for entry in self._room.retired if entry.size != shelf.size or entry.key in there]
        self._room.retired += self._doubles
        self._doubles.clear()
