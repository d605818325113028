"""Where the next block goes, and what leaves for it.

For each block that is to be written, in this order:

1. its tenant's quota: the tenant's own blocks leave;
2. above the high watermark, blocks leave until the low one is reached;
3. a place of its size: a free one, a new slab if the bound allows it, else the block that is next to leave goes. If that one
   is of another size, its whole slab goes, with all that stands behind its blocks, and a slab of the new size takes its room.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import numpy as np

from kvpager.errors import StorageFull, StoreError, TierBusy
from kvpager.store.catalogue import Catalogue
from kvpager.store.entry import Entry
from kvpager.store.rack import Rack
from kvpager.store.requests import Job
from kvpager.store.shelf import Done, Shelf

__all__ = ["Room"]

YES, LATER, NEVER = "yes", "later", "never"


class Room:
    """Makes room under the store's bound.

    Parameters
    ----------
    rack, catalogue : Rack, Catalogue
        What there is.
    low, high : float
        Watermarks, shares of the capacity.
    quotas : dict of bytes to int
        Bytes on disk by tenant's id; who is not in it has none of its own.

    Attributes
    ----------
    waiting : deque
        What is to be written, in order.
    retired : list of Entry
        Replaced blocks that still have their place, because what replaced them is not durable.
    reserved_bytes : int
        On disk, of what is being written; `reserved` by tenant.
    evicted : int
        Blocks that left.
    leaving : Counter of bytes
        Records that are being wiped, by digest.
    unsure : set of bytes
        Digests of records that could not be: they may be back when the store is opened again.
    """

    def __init__(self, rack: Rack, catalogue: Catalogue, low: float, high: float, quotas: Mapping[bytes, int]) -> None:
        self._rack, self._catalogue, self.quotas = rack, catalogue, quotas
        self._low_bytes, self._high_bytes = int(low * rack.capacity), int(high * rack.capacity)
        self.waiting: deque[tuple[Job, Entry]] = deque()
        self.retired: list[Entry] = []
        self.reserved_bytes = self.evicted = 0
        self.reserved: Counter[bytes] = Counter()
        self.leaving: Counter[bytes] = Counter()
        self.unsure: set[bytes] = set()
        self._to_wipe: dict[int, list[tuple[int, Done]]] = {}  # by size
        self._disk_full = False  # for the block that is looked at, `_for_whom`
        self._for_whom: Entry | None = None

    def start_writes(self) -> list[tuple[Job, Entry]]:
        """Begin what can begin, in order; return those for which there will be no room."""
        refused = []
        while self.waiting:
            job, entry = self.waiting[0]
            try:
                verdict = NEVER if job.request.given_up else self._for(entry)
            except (OSError, StoreError):  # what must be written before anything may change cannot be: a read-only disk
                verdict = NEVER
            if verdict == LATER:
                break
            if verdict == NEVER:
                refused.append(self.waiting.popleft())
                continue
            together = self._together(entry.size)
            try:
                self._rack.shelves[entry.size].start_writes(together)
            except TierBusy:
                self._back(together)
                break
            except StorageFull:
                self._disk_full = True
                self._back(together)
            except OSError:
                refused += together
                self._reserve(together, sign=-1)
        self.wipe()
        return refused

    def _together(self, size: int) -> list[tuple[Job, Entry]]:
        """Take what can begin with the first that waits, which has a place: those for which nothing need leave."""
        shelf = self._rack.shelves[size]
        most, together = max(1, min(shelf.batch, shelf.store.free)), [self.waiting.popleft()]
        self._reserve(together)
        while self.waiting and len(together) < most:
            job, entry = self.waiting[0]
            if entry.size != size or job.request.given_up or self._over_quota(entry) or self._above(self._high_bytes, entry):
                break
            together.append(self.waiting.popleft())
            self._reserve(together[-1:])
        return together

    def _back(self, together: list[tuple[Job, Entry]]) -> None:
        self.waiting.extendleft(reversed(together))
        self._reserve(together, sign=-1)

    def _reserve(self, jobs: list[tuple[Job, Entry]], *, sign: int = 1) -> None:
        for _, entry in jobs:
            self.reserved_bytes += sign * entry.disk_bytes
            self.reserved[entry.tenant] += sign * entry.disk_bytes

    def _over_quota(self, entry: Entry) -> bool:
        quota = self.quotas.get(entry.tenant)
        if quota is None:
            return False
        return self._catalogue.tenant_bytes[entry.tenant] + self.reserved[entry.tenant] + entry.disk_bytes > quota

    def _above(self, mark: int, entry: Entry) -> bool:
        return self._catalogue.used_bytes + self.reserved_bytes + entry.disk_bytes > mark

    def let_go_replaced(self) -> None:
        """Make everything durable, then wipe what was replaced."""
        self._rack.sync()
        retired, self.retired = self.retired, []
        for entry in retired:
            self.let_go(entry)
        self.wipe()

    def shrink(self) -> None:
        """Evict until the store is within its bound, after it was opened with a smaller one."""
        while self._rack.disk_bytes > self._rack.capacity:
            if self.retired:
                self.let_go_replaced()
            victim = self._catalogue.victim()
            if victim is not None and not self._empty_a_slab(victim, "bound"):
                self.evict(victim, "bound")
            self.wipe()
            for shelf in self._rack.shelves.values():
                shelf.store.drain()
                shelf.finished()
            before = self._rack.disk_bytes
            self._take_back(0)
            if victim is None and self._rack.disk_bytes == before:
                return

    def take_back(self) -> None:
        """Delete all slabs that hold nothing."""
        self._take_back(0)

    def evict(self, entry: Entry, why: str) -> None:
        """Let a block go; `why` is one of `EVICTED_FOR`."""
        self._catalogue.remove(entry, why)
        self.let_go(entry)
        self.evicted += 1

    def let_go(self, entry: Entry) -> None:
        """Have a block wiped that is in the catalogue no longer, by the next `wipe`."""
        self.leaving[entry.digest] += 1

        def wiped(sure: bool) -> None:
            self.leaving[entry.digest] -= 1
            if not self.leaving[entry.digest]:
                del self.leaving[entry.digest]
            if not sure:
                self.unsure.add(entry.digest)

        self._to_wipe.setdefault(entry.size, []).append((entry.key, wiped))

    def wipe(self) -> None:
        """Begin to wipe what was let go."""
        to_wipe, self._to_wipe = self._to_wipe, {}
        for size, leaving in to_wipe.items():
            keys, told = [key for key, _ in leaving], [done for _, done in leaving]

            def done(sure: bool, told: list[Done] = told) -> None:
                for one in told:
                    one(sure)

            try:
                self._rack.shelves[size].wipe(keys, done)
            except (OSError, StoreError):  # what must be written before anything may change cannot be: they keep their places
                done(sure=False)

    def _for(self, entry: Entry) -> str:
        """Whether `entry` can be written now, later or never."""
        if entry is not self._for_whom:
            self._for_whom, self._disk_full = entry, False
        if self._rack.slab_bytes(entry.size) > self._rack.capacity - self._rack.set_aside_bytes:
            return NEVER
        while self._over_quota(entry):
            victim = self._catalogue.victim(entry.tenant)
            if victim is None:
                fits = entry.disk_bytes <= self.quotas[entry.tenant]
                return LATER if self.reserved[entry.tenant] and fits else NEVER
            self.evict(victim, "quota")
        if self._above(self._high_bytes, entry):
            while self._above(self._low_bytes, entry):
                victim = self._catalogue.victim()
                if victim is None:
                    break
                self.evict(victim, "watermark")
        return self._place_for(entry.size)

    def _place_for(self, size: int) -> str:
        while True:
            self.wipe()
            shelf = self._rack.shelves.get(size)
            if shelf is not None and shelf.store.free:
                return YES if shelf.batch else LATER
            if not self._disk_full and (self._rack.has_room(size) or (self._take_back(size) and self._rack.has_room(size))):
                return self._grow(shelf, size)
            if any(other.store.coming or other.busy for other in self._rack.shelves.values()):
                return LATER
            if self.retired:
                try:
                    self.let_go_replaced()
                except StoreError:
                    return NEVER
                continue
            if self._disk_full and self._take_back(size):
                self._disk_full = False
                continue
            if not self._evict_for(size):
                return NEVER

    def _evict_for(self, size: int) -> bool:
        """Let go what is next to leave, so that there is room for a block of `size`; False if nothing may."""
        victim = self._catalogue.victim()
        if victim is None:
            return False
        if victim.size == size:
            self.evict(victim, "place")
            return True
        if not self._disk_full and self._empty_a_slab(victim, "slab"):  # on a full disk another may take what a slab gives back
            return True
        return self._other_victim(size)

    def _grow(self, shelf: Shelf | None, size: int) -> str:
        try:
            if shelf is None:
                self._rack.new_shelf(size)
            else:
                shelf.store.grow(1)
        except StorageFull:
            self._disk_full = True
            return self._place_for(size)
        return YES if shelf is None or shelf.batch else LATER

    def _other_victim(self, size: int) -> bool:
        """Evict a block of this very size, since the one that is next cannot make room; False if there is none."""
        mine = [entry for entry in self._catalogue if entry.size == size]
        for entry in sorted(mine, key=lambda entry: entry.sequence):
            behind = self._catalogue.with_all_behind([entry])
            if behind is not None:
                for one in behind:
                    self.evict(one, "place")
                return True
        return False

    def _empty_a_slab(self, victim: Entry, why: str) -> bool:
        """Evict all blocks of the slab that `victim` is in, and what stands behind them; False if one is pinned."""
        store = self._rack.shelves[victim.size].store
        mine = [entry for entry in self._catalogue if entry.size == victim.size]
        slabs = store.slabs_of(np.array([entry.key for entry in [*mine, victim]], np.uint64))
        leaving = self._catalogue.with_all_behind([entry for entry, slab in zip(mine, slabs, strict=False) if slab == slabs[-1]])
        if leaving is None:
            return False
        for entry in leaving:
            self.evict(entry, why)
        return True

    def _take_back(self, size: int) -> bool:
        """Delete slabs that hold nothing, of other sizes than `size`; return whether there was one."""
        before = self._rack.disk_bytes
        for shelf in list(self._rack.shelves.values()):
            if shelf.size != size and not shelf.busy and shelf.store.free >= shelf.store.shape.places:
                shelf.store.give_back()
                if not shelf.store.records and shelf.idle:
                    self._rack.drop_shelf(shelf)
        return self._rack.disk_bytes < before
