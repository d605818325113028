"""What a store holds and where there is room: table, places, slab files and index, kept in step.

Order is what keeps a promise here. A changed slab is announced (`changing`) before it is written. A record that replaces
another takes a new place, and the old place is not used again before the new record is durable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import InvariantError, StorageFull, StoreError
from kvpager.slab.files import PAGE_BYTES, Files
from kvpager.slab.folder import Folder
from kvpager.slab.index import Index
from kvpager.slab.record import Shape
from kvpager.slab.scan import Damage, scan, verify
from kvpager.slab.space import Space
from kvpager.slab.table import Records, Table
from kvpager.slab.transfer import Disk

__all__ = ["Contents", "Stats"]


@dataclass(slots=True)
class Stats:
    """What a store did since it was opened, and what it met."""

    read_units: int = 0
    """Served."""
    read_bytes: int = 0
    """Their payload."""
    written_records: int = 0
    """Acknowledged."""
    written_bytes: int = 0
    """Their payload."""
    checksum_failures: int = 0
    """Units that were held, and could not be read or did not match: not served."""
    io_errors: int = 0
    """Calls that the system refused."""
    damage: list[Damage] = field(default_factory=list)
    """Found when the store was opened or its table rebuilt."""
    notices: list[str] = field(default_factory=list)
    """What a user should know: buffered I/O, an index that had to be rebuilt."""


class Contents:
    """The table of records and the places they are in.

    Parameters
    ----------
    path : Path
        The store's directory.
    shape : Shape
        Of its records.
    capacity_bytes : int
        Disk to be used at most.
    threads : int
        For scans.
    files : Files
        The file layer.
    stats : Stats
        Where notices and damage go.

    Attributes
    ----------
    table : Table
        Acknowledged records.
    disk : Disk
        The open slabs.
    generation : int
        The highest one used.
    hinted : bool
        Whether the table came from the index and no header was looked at yet.
    growth : int, optional
        Slabs that may still be added, where something other than the capacity bounds them.
    """

    def __init__(self, path: Path, shape: Shape, capacity_bytes: int, threads: int, files: Files, stats: Stats) -> None:
        self.shape, self._stats, self._files = shape, stats, files
        self.most_slabs = capacity_bytes // shape.slab_bytes
        self.growth: int | None = None
        self.folder = Folder(path, shape, files)
        self._index = Index(path, shape.identity, shape.parts, shape.tag_bytes, files)
        self.disk = Disk(files, shape, threads)
        self.disk.fds, self.disk.direct = self.folder.fds, self.folder.direct
        self._unsynced: set[int] = set()
        self._names_changed = self._changed_all = self._dirty = False
        self._changed: list[NDArray[np.int64]] = []
        self._replaced: list[NDArray[np.int64]] = []
        self.table, self._space = Table(shape.layers, shape.parts, shape.tag_bytes), Space(0)
        self.generation, self.hinted = 0, False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        if not self.folder.direct:
            self._stats.notices.append(f"{self.folder.path}: no O_DIRECT here (tmpfs?): buffered I/O through the page cache")
        new = not self.folder.fds
        if new:
            self._add_slab(0)
        hint = self._index.load()
        self.generation, self.hinted = self._index.generation, hint is not None
        if hint is None and not new:
            self._stats.notices.append(
                f"{self.folder.path}: the index is not used, since {self._index.why_not}: headers were read"
            )
        self._changed_all = self._dirty = hint is None
        self._fill(self._scanned(finished_only=self._index.known) if hint is None else hint)
        self._look_at_slabs()
        if new:
            self.sync(settled=True)

    def _look_at_slabs(self) -> None:
        """Report damaged superblocks and slabs that are too short; finish slabs that were only half made."""
        used = set((self.table.all().place // self.shape.places).tolist())
        for number, held in list(self.folder.held_bytes.items()):
            unfinished = number in self.folder.blank and number not in used
            if held < self.shape.slab_bytes:
                self.folder.lengthen(number)
            if unfinished:
                self.folder.mend(number)
                continue
            if held < self.shape.slab_bytes:
                self._stats.damage.append(Damage(self.folder.name(number), f"slab (only {held:,} bytes are left)", 0, -1))
            if number in self.folder.damaged:
                self._stats.damage.append(Damage(self.folder.name(number), "superblock", 0, -1))

    def take(self, count: int) -> NDArray[np.int64]:
        """Take `count` free places, ascending; the slabs grow if they must.

        Raises
        ------
        StorageFull
            If there is no room and none can be made.
        """
        if self._space.free < count and self._replaced:
            self.sync(settled=False)
        while self._space.free < count:
            number = next((slab for slab in range(self.most_slabs) if slab not in self.folder.fds), None)
            if number is None or self.growth == 0:
                raise StorageFull(
                    f"store {str(self.folder.path)!r} is full: {self._space.free} of {self.most_slabs * self.shape.places} "
                    f"places are free, {count} are needed; drop sessions, run 'kvpager store gc', or give it more bytes"
                )
            self._add_slab(number)
            self.growth = self.growth and self.growth - 1
        return np.sort(self._space.take(count).astype(np.int64))

    @property
    def free(self) -> int:
        """Places that hold nothing."""
        return self._space.free

    def give(self, places: NDArray[np.int64]) -> None:
        """Make `places` free."""
        slabs = places // self.shape.places
        usable = np.array([slab in self.folder.fds and slab < self.most_slabs for slab in slabs.tolist()], np.bool_)
        self._space.give(places[usable] if len(places) else places)

    def changing(self) -> None:
        """Say that the slabs or the table are about to change: the index is no longer to be believed."""
        if not self._dirty:
            self._index.unset_clean()
            self._dirty = True

    def install(self, records: Records) -> None:
        """Take in records that were written."""
        replaced = self.table.put(records)
        self._changed += [records.place, replaced]
        self._unsynced.update((records.place // self.shape.places).tolist())
        if len(replaced):
            self._replaced.append(replaced)

    def wiped(self, places: NDArray[np.int64]) -> None:
        """Say that the headers in `places` were overwritten."""
        self._unsynced.update((places // self.shape.places).tolist())

    def drop(self, keys: list[int]) -> NDArray[np.int64]:
        """Take the records of `keys` out; return their places, which are not free yet."""
        self.changing()
        places = self.table.drop(keys)
        self._changed.append(places)
        return places

    def sync(self, settled: bool) -> None:
        """Make everything installed durable, then the index; `settled`: no write is under way, so the two will agree."""
        try:
            for slab in sorted(self._unsynced):
                if slab in self.folder.fds:
                    self._files.sync(self.folder.fds[slab])
            if self._names_changed:
                self._files.sync_folder(self.folder.path)
        except OSError as error:
            raise StoreError(
                f"store {str(self.folder.path)!r} cannot be made durable ({error.strerror}): check the disk"
            ) from error
        self._unsynced.clear()
        self._names_changed = False
        for places in self._replaced:
            self.give(places)
        self._replaced.clear()
        if self._dirty:
            self._save(settled)

    def _save(self, settled: bool) -> None:
        """Write the index. Its mark and the folder come last: an old mark must not come back beside an old index."""
        changed = None if self._changed_all or self._index.broken else np.unique(np.concatenate([_NONE, *self._changed]))
        self._index.save(self.table.all(), changed, self.generation, json.dumps(self.shape.said()))
        why_not = self._index.why_not if self._index.broken else ""
        try:
            if settled:
                self._index.set_clean()
            self._files.sync_folder(self.folder.path)
        except OSError as error:
            why_not = f"its mark cannot be written ({error.strerror})"
        if why_not:
            self._stats.notices.append(f"{self.folder.path}: the index is not used, since {why_not}")
            return
        self._changed, self._changed_all, self._dirty = [], False, not settled

    def rebuild(self, without: set[int]) -> bool:
        """Fill the table from the headers, leaving out the keys in `without`; no ticket may be under way.

        Return False, and change nothing, if they cannot be read now.
        """
        try:
            self.changing()
            self.sync(settled=False)
            records = self._scanned(finished_only=False)
        except (OSError, StoreError):
            self._stats.io_errors += 1
            return False
        self._stats.notices.append(f"{self.folder.path}: the index contradicts the data: headers were read")
        self._changed_all, self.hinted = True, False
        if without:
            records = records.some(~np.isin(records.key, np.fromiter(without, np.uint64, len(without))))
        self._fill(records)
        return True

    def tidy(self) -> None:
        """Write damaged superblocks again, and delete slabs that hold nothing, but for the first."""
        for number in self.folder.damaged:
            self.folder.mend(number)
        self.folder.damaged = []
        free = self._space.is_free()
        for number in [number for number in self.folder.fds if 0 < number < self.most_slabs]:
            places = np.arange(number * self.shape.places, (number + 1) * self.shape.places)
            if free[places].all():
                self._space.claim(places)
                self.folder.remove(number)
                self._unsynced.discard(number)
                self._names_changed = True

    def verify(self) -> list[Damage]:
        """Read every record whole; return all damage, that met at opening included."""
        return [*self._stats.damage, *verify(self.disk, self.table.all(), self._where)]

    def check(self) -> None:
        """Raise `InvariantError` if table and places contradict each other."""
        held, free = self.table.all().place, self._space.is_free()
        if len(np.unique(held)) != len(held) or free[held].any() or self.table.records != len(held):
            raise InvariantError(f"{len(held)} records of {str(self.folder.path)!r} share places, or have places that are free")

    def close(self) -> None:
        """Close the files."""
        self._index.close()
        self.folder.close()

    def _scanned(self, finished_only: bool) -> Records:
        """All records whose header is good; of those newer than the index, `finished_only` leaves the whole ones.

        Writing one takes a moment. A process that was killed in it may leave a header without its parts: nobody was told
        that it is there, and it is wiped out.
        """
        found = scan(self.disk)
        records = found.records
        if not self.folder.sound and not len(records.key) and not self._index.same_store:
            raise StoreError(
                f"no slab of {str(self.folder.path)!r} says what it is, and nothing in it belongs to this store: "
                f"choose another directory"
            )
        for place in found.damaged.tolist():
            self._stats.damage.append(Damage(self._where(place), "header", 0, -1, place))
        if not finished_only:
            return records
        new = records.some(records.generation > self._index.generation)
        torn = {damage.place for damage in verify(self.disk, new, self._where)}
        if torn:
            self._stats.notices.append(f"{self.folder.path}: {len(torn)} records were only half written, and are gone")
        self.disk.wipe(torn)
        return records.some(~np.isin(records.place, list(torn)))

    def _where(self, place: int) -> str:
        slab, slot = divmod(place, self.shape.places)
        return f"{self.folder.name(slab)}, place {slot}"

    def _fill(self, records: Records) -> None:
        """Make `records` the table, and what it leaves the free places."""
        places = self.shape.places
        slabs = max(self.folder.fds) + 1
        held = np.array([self.folder.held_bytes.get(slab, 0) for slab in range(slabs)])
        slab, slot = np.divmod(records.place, places)
        there = (slab >= 0) & (slab < slabs)
        there &= (slot + 1) * self.shape.record_bytes + PAGE_BYTES <= held[np.where(there, slab, 0)]
        for number in np.flatnonzero(~there).tolist():
            key, layer, place = int(records.key[number]), int(records.layer[number]), int(records.place[number])
            self._stats.damage.append(Damage(self._where(place), "missing", key, layer, place))
        self._changed.append(records.place[~there])
        records = records.some(there)
        self.table = Table(self.shape.layers, self.shape.parts, self.shape.tag_bytes)
        self.table.put(records)
        self.generation = max(self.generation, int(records.generation.max(initial=0)))
        free = np.repeat([slab in self.folder.fds and slab < self.most_slabs for slab in range(slabs)], places)
        free[self.table.all().place] = False
        self._space = Space(slabs * places)
        self._space.claim(np.flatnonzero(~free))

    def _add_slab(self, number: int) -> None:
        try:
            self.folder.add(number)
        except OSError as error:
            raise StorageFull(
                f"store {str(self.folder.path)!r} cannot grow by {self.shape.slab_bytes:,} bytes ({error.strerror}): free disk "
                f"space, drop sessions or run 'kvpager store gc'; what it holds stays readable"
            ) from error
        self._unsynced.add(number)
        self._names_changed = True
        places, have = self.shape.places, len(self._space) // self.shape.places
        if number < have:
            self._space.give(np.arange(number * places, (number + 1) * places))
        else:
            self._space.extend((number + 1 - have) * places)
            self._space.claim(np.arange(have * places, number * places))


_NONE = np.zeros(0, np.int64)
