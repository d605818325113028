"""A block store's directory: a shelf for each size of place, all of them under one bound in bytes.

::

    DIR/lock            held by the process that owns the store
    DIR/socket          where the owner serves other processes
    DIR/store.json      that this is a block store, and how long its slabs are
    DIR/size-00065536/  a slab store: blocks in places of 65,536 bytes
    DIR/set-aside/      what was found and is not this store's: never deleted but by gc, and counted in the bound
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from kvpager.errors import StorageFull, StoreError
from kvpager.slab.files import PAGE_BYTES, Files, write_fully
from kvpager.slab.folder import shape_of, slabs_in
from kvpager.slab.io import Workers
from kvpager.slab.record import read_superblock
from kvpager.store.shelf import Shelf
from kvpager.store.sizes import MOST_BLOCK_BYTES, place_bytes, slab_bytes

__all__ = ["MARKER", "THREADS", "Marker", "Rack", "is_block_store", "lock"]

MARKER = "store.json"
_WHAT, _FORMAT = "kvpager block store", 1
_LEAST_SLAB_BYTES = 32 << 10
_SLABS = 64
"""Into how many slabs a store's bytes are cut, about: what moves from one size to another is a slab."""
THREADS = 16
"""More than keep a disk busy: who makes a checksum or copies asks for nothing meanwhile."""


class Marker:
    """What ``store.json`` says.

    Parameters
    ----------
    capacity : int
        Bytes that the store was last opened with.
    about_bytes : int
        About how long its slabs are.
    """

    def __init__(self, capacity: int, about_bytes: int) -> None:
        self.capacity, self.about_bytes = capacity, about_bytes

    @classmethod
    def read(cls, path: Path) -> Marker | None:
        """Return what the marker in `path` says; None if there is none that can be read.

        Raises
        ------
        StoreError
            If another version wrote it.
        """
        try:
            said = json.loads((path / MARKER).read_bytes())
            marker = cls(int(said["capacity"]), int(said["slab_bytes"])) if said["what"] == _WHAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if said.get("format") != _FORMAT:
            raise StoreError(
                f"block store {str(path)!r} has format {said.get('format')!r}, this version of kvpager reads {_FORMAT}: use "
                f"another directory"
            )
        return marker if marker and marker.about_bytes >= PAGE_BYTES else None

    def write(self, path: Path, files: Files) -> None:
        """Make it the marker in `path`, whole or not at all."""
        said = {"what": _WHAT, "format": _FORMAT, "capacity": self.capacity, "slab_bytes": self.about_bytes}
        new = path / (MARKER + ".new")
        fd = files.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            write_fully(files, fd, [memoryview(json.dumps(said).encode())], 0)
            files.sync(fd)
        finally:
            files.close(fd)
        files.rename(new, path / MARKER)
        files.sync_folder(path)


def is_block_store(path: Path) -> bool:
    """Whether `path` holds a block store, rather than the live cache's store or nothing."""
    return Marker.read(path) is not None or any(path.glob("size-*"))


def lock(path: Path, files: Files) -> int:
    """Take the lock of the store in `path`, made if it is not there; return its descriptor, or -1 if another has it.

    Raises
    ------
    StoreError
        If the directory cannot be written, or holds something else.
    """
    try:
        files.make_folder(path)
        known = is_block_store(path)
        others = {name for name in os.listdir(path) if name not in ("lock", "socket", MARKER, MARKER + ".new")}
        if others and not known:
            raise StoreError(
                f"directory {str(path)!r} holds something else ({min(others)!r}): a block store needs a directory of its own"
            )
        fd = files.open(path / "lock", os.O_RDWR | os.O_CREAT)
        if not files.lock(fd):
            files.close(fd)
            return -1
    except OSError as error:
        raise StoreError(f"store {str(path)!r} cannot be written ({error.strerror}): choose another directory") from error
    return fd


class Rack:
    """The shelves of one store, whose lock the caller holds.

    Parameters
    ----------
    path : Path
        The directory.
    capacity : int
        Bytes of all slab files together, at most; 0: as it was opened last.
    staging_bytes : int
        Of memory a shelf.
    files : Files
        The file layer.
    wake : callable
        Called by an I/O thread when something finished.

    Attributes
    ----------
    shelves : dict of int to Shelf
        By size of place.
    set_aside_bytes : int
        Of what is not this store's.
    notices : list of str
        What a user should know.
    """

    def __init__(self, path: Path, capacity: int, staging_bytes: int, files: Files, wake: Callable[[], None]) -> None:
        self.path, self._files, self._staging_bytes, self._wake = path, files, staging_bytes, wake
        marker = Marker.read(path)
        there = sum(file.stat().st_size for file in path.glob("size-*/slab-*.kv"))
        capacity = capacity or (marker.capacity if marker else there)
        if not capacity:
            raise StoreError(f"store {str(path)!r} is new: say how many bytes it may take (capacity)")
        about = marker.about_bytes if marker else max(capacity // _SLABS, _LEAST_SLAB_BYTES)
        self.capacity = capacity
        self._marker = Marker(capacity, about)
        if marker is None or marker.capacity != capacity:
            self._marker.write(path, files)
        self.notices: list[str] = []
        self.shelves: dict[int, Shelf] = {}
        self.set_aside_bytes = sum(file.stat().st_size for file in (path / "set-aside").rglob("*") if file.is_file())
        self._workers = Workers(THREADS, 2 * MOST_BLOCK_BYTES + (4 << 20))
        try:
            for folder in sorted(path.glob("size-*")):
                self._take_up(folder)
        except BaseException:
            self.close()
            raise

    @property
    def disk_bytes(self) -> int:
        """Bytes of all slab files, and of what was set aside."""
        return self.set_aside_bytes + sum(shelf.store.disk_bytes for shelf in self.shelves.values())

    def slab_bytes(self, size: int) -> int:
        """Length of a slab of places of `size` bytes."""
        shelf = self.shelves.get(size)
        return shelf.store.shape.slab_bytes if shelf else slab_bytes(size, self._marker.about_bytes)

    def has_room(self, size: int) -> bool:
        """Whether there may be another slab of places of `size` bytes."""
        return self.disk_bytes + self.slab_bytes(size) <= self.capacity

    def new_shelf(self, size: int) -> Shelf:
        """Make the shelf for places of `size` bytes, with one slab.

        Raises
        ------
        StorageFull
            If the disk has no room for it.
        """
        folder = self.path / f"size-{size:08}"
        try:
            shelf = self._open(folder, size, self.slab_bytes(size))
        except StorageFull:
            self._delete(folder)
            raise
        self.shelves[size] = shelf
        self._files.sync_folder(self.path)
        return shelf

    def drop_shelf(self, shelf: Shelf) -> None:
        """Delete a shelf on which nothing is, and that is idle."""
        del self.shelves[shelf.size]
        shelf.store.close()
        self._delete(shelf.folder)

    def sync(self) -> None:
        """Make everything acknowledged durable."""
        for shelf in self.shelves.values():
            shelf.store.sync()

    def sweep(self) -> int:
        """Delete what was set aside; return its bytes."""
        freed, self.set_aside_bytes = self.set_aside_bytes, 0
        for folder in sorted((self.path / "set-aside").glob("*")):
            if folder.is_dir():
                self._delete(folder)
            else:
                self._files.remove(folder)
        return freed

    def close(self) -> None:
        """Finish what is under way, and close all files."""
        failure: Exception | None = None
        for shelf in self.shelves.values():
            try:
                shelf.store.close()
            except StoreError as error:
                failure = error
        self._workers.close()
        if failure is not None:
            raise failure

    def _open(self, folder: Path, size: int, length: int) -> Shelf:
        return Shelf(folder, size, length, self._staging_bytes, self._files, self._workers, self._wake)

    def _take_up(self, folder: Path) -> None:
        """Open a shelf that is there, or set it aside if it cannot be one."""
        digits = folder.name.removeprefix("size-")
        size = int(digits) if digits.isdecimal() else 0
        if not folder.is_dir() or not 0 < size <= MOST_BLOCK_BYTES or place_bytes(size) != size:
            self._set_aside(folder, "it is no size of places")
            return
        fd = self._files.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        free = self._files.lock(fd)
        self._files.close(fd)
        if not free:
            raise StoreError(f"{str(folder)!r} is in use by another process, though the store is not: end that one")
        for number in slabs_in(folder):
            file = folder / f"slab-{number:05}.kv"
            with open(file, "rb") as slab:
                said = read_superblock(slab.read(PAGE_BYTES))
            if said is not None and said[0].part_bytes != size:
                self._set_aside(file, f"it is of places of {said[0].part_bytes:,} bytes")
        try:
            length = shape_of(folder).slab_bytes
        except StoreError as error:
            if error.__cause__ is not None and isinstance(error.__cause__, StoreError):
                raise
            length = self.slab_bytes(size)
        if not slabs_in(folder) and not self.has_room(size):
            self._set_aside(folder, "it holds nothing")  # a new slab would be made for it
            return
        try:
            self.shelves[size] = self._open(folder, size, length)
        except StoreError as error:
            if error.__cause__ is not None:  # the disk's fault, or another version's: nothing is touched
                raise
            self._set_aside(folder, str(error))

    def _set_aside(self, what: Path, why: str) -> None:
        home = self.path / "set-aside"
        self._files.make_folder(home)
        number = len(os.listdir(home))
        self.set_aside_bytes += sum(file.stat().st_size for file in (what, *what.rglob("*")) if file.is_file())
        self._files.rename(what, home / f"{number}-{what.parent.name}-{what.name}")
        self.notices.append(f"{what}: set aside, since {why}; 'kvpager store gc' deletes it")

    def _delete(self, folder: Path) -> None:
        if folder.is_dir():
            for file in folder.iterdir():
                self._files.remove(file)
            folder.rmdir()
