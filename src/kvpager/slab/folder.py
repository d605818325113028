"""A store's directory: its lock, its slab files, and what their superblocks say.

::

    DIR/lock              held while a process uses the store
    DIR/slab-00000.kv     superblock page, then places of records
    DIR/index.sqlite      a hint; DIR/clean says that it is up to date
    DIR/sessions/*.json   the live cache's; each lists the keys it needs
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict
from pathlib import Path

from kvpager.errors import StoreError
from kvpager.slab.files import PAGE_BYTES, Files, aligned, read_fully, write_fully
from kvpager.slab.record import Shape, read_superblock, superblock

__all__ = ["Folder", "differences", "shape_of", "slabs_in"]

_SLAB = re.compile(r"slab-(\d{5})\.kv")


class Folder:
    """An open and locked store directory.

    Parameters
    ----------
    path : Path
        The directory; made if it is not there.
    shape : Shape
        What the store must be.
    files : Files
        The file layer.

    Attributes
    ----------
    fds : dict of int to int
        Descriptors of the slabs, by number.
    held_bytes : dict of int to int
        How long each slab file was when it was opened.
    damaged : list of int
        Slabs whose superblock cannot be read.
    blank : list of int
        Those among them without a superblock: a process may have been killed when it made them.
    sound : bool
        Whether at least one superblock says that this is the right store.
    direct : bool
        Whether the slabs are open with O_DIRECT.
    """

    def __init__(self, path: Path, shape: Shape, files: Files) -> None:
        self.path, self.shape, self.files = path, shape, files
        self.fds: dict[int, int] = {}
        self.held_bytes: dict[int, int] = {}
        self.damaged: list[int] = []
        self.blank: list[int] = []
        self.sound = self.direct = False
        self._lock = -1
        try:
            files.make_folder(path)
            self._lock = files.open(path / "lock", os.O_RDWR | os.O_CREAT)
            if not files.lock(self._lock):
                raise StoreError(f"store {str(path)!r} is in use by another process: end that one, or choose another directory")
            self.direct = files.direct_works(self._probe())
            for number in sorted(slabs_in(path)):
                self._take_up(number)
        except OSError as error:
            self.close()
            raise StoreError(f"store {str(path)!r} cannot be written ({error.strerror}): choose another directory") from error
        except BaseException:
            self.close()
            raise

    def name(self, number: int) -> str:
        """File name of slab `number`."""
        return f"slab-{number:05}.kv"

    def add(self, number: int) -> None:
        """Create slab `number` with all its room; raise `OSError` if there is none, leaving nothing behind."""
        path = self.path / self.name(number)
        fd = self.files.open(path, self._flags | os.O_CREAT | os.O_EXCL)
        try:
            self.files.allocate(fd, self.shape.slab_bytes)
            self._head(fd, number)
        except OSError:
            self.files.close(fd)
            self.files.remove(path)
            raise
        self.fds[number], self.held_bytes[number], self.sound = fd, self.shape.slab_bytes, True

    def lengthen(self, number: int) -> None:
        """Give slab `number`, which is too short, its room; if there is none, what is written there will fail."""
        with contextlib.suppress(OSError):
            self.files.allocate(self.fds[number], self.shape.slab_bytes)
        self.held_bytes[number] = self.files.size(self.fds[number])

    def remove(self, number: int) -> None:
        """Delete slab `number`."""
        self.files.close(self.fds.pop(number))
        self.files.remove(self.path / self.name(number))

    def mend(self, number: int) -> None:
        """Write the superblock of slab `number` again."""
        self._head(self.fds[number], number)
        self.sound = True

    def close(self) -> None:
        """Close all files and give the lock back."""
        for fd in self.fds.values():
            self.files.close(fd)
        self.fds.clear()
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1

    @property
    def lock_fd(self) -> int:
        """Descriptor of the lock; negative when it is given back."""
        return self._lock

    @property
    def _flags(self) -> int:
        return os.O_RDWR | (os.O_DIRECT if self.direct else 0)

    def _probe(self) -> Path:
        """A file of a page on this file system."""
        path = self.path / "lock"
        if self.files.size(self._lock) < PAGE_BYTES:
            write_fully(self.files, self._lock, [memoryview(bytes(PAGE_BYTES))], 0)
        return path

    def _head(self, fd: int, number: int) -> None:
        page = aligned(PAGE_BYTES)
        page.data[:] = superblock(self.shape, number)
        write_fully(self.files, fd, [page.data], 0)

    def _take_up(self, number: int) -> None:
        fd = self.fds[number] = self.files.open(self.path / self.name(number), self._flags)
        self.held_bytes[number] = self.files.size(fd)
        page = aligned(PAGE_BYTES)
        read_fully(self.files, fd, [page.data], 0)
        said = _understood(self.path, page.tobytes())
        if said is None or (said[0] == self.shape and said[1] != number):
            self.damaged.append(number)
            if not page.any():
                self.blank.append(number)
            return
        self.sound = True
        if said[0] != self.shape:
            ours, theirs = asdict(self.shape), asdict(said[0])
            what = ", ".join(_apart(name, theirs[name], ours[name]) for name in ours if ours[name] != theirs[name])
            raise StoreError(f"store {str(self.path)!r} was made for something else: {what}; choose another directory")


def _understood(path: Path, page: bytes) -> tuple[Shape, int] | None:
    """`read_superblock`, with the store's name in the refusal."""
    try:
        return read_superblock(page)
    except StoreError as error:
        raise StoreError(f"store {str(path)!r} cannot be used: {error}") from error


def _apart(name: str, theirs: object, ours: object) -> str:
    return (
        differences(theirs, ours) if isinstance(theirs, str) and isinstance(ours, str) else f"{name} is {theirs!r}, not {ours!r}"
    )


def differences(theirs: str, ours: str) -> str:
    """Say in which of their words ``name=value`` two fingerprints differ; of other ones, what they are."""
    if "=" not in theirs or "=" not in ours:
        return f"fingerprint is {theirs!r}, not {ours!r}"
    known, wanted = (dict(word.partition("=")[::2] for word in text.split()) for text in (theirs, ours))
    names = [*wanted, *(name for name in known if name not in wanted)]
    return ", ".join(
        f"{name} is {known.get(name, 'unknown')}, not {wanted.get(name, 'unknown')}"
        for name in names
        if known.get(name) != wanted.get(name)
    )


def slabs_in(path: Path) -> list[int]:
    """Numbers of the slab files in `path`."""
    return [int(match[1]) for name in os.listdir(path) if (match := _SLAB.fullmatch(name))]


def shape_of(path: Path) -> Shape:
    """Return the shape of the store in `path`, from its first sound superblock or else from its index.

    Raises
    ------
    StoreError
        If there is no store, or none that says what it is.
    """
    if not path.is_dir() or not (slabs_in(path) or (path / "index.sqlite").exists()):
        raise StoreError(f"there is no store in {str(path)!r}: name the directory that was given as --store")
    for number in sorted(slabs_in(path)):
        with open(path / f"slab-{number:05}.kv", "rb") as slab:
            said = _understood(path, slab.read(PAGE_BYTES))
        if said is not None:
            return said[0]
    try:
        return Shape(**json.loads(_indexed_shape(path / "index.sqlite")))
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"no file of store {str(path)!r} says what it is, all superblocks and the index are damaged: open it by the run that "
            f"made it, or remove it"
        ) from error


def _indexed_shape(path: Path) -> str:
    """The shape as the index states it; empty if it does not."""
    import sqlite3
    from contextlib import closing

    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(path)) as database:
            row = database.execute("select value from meta where name = 'shape'").fetchone()
    except sqlite3.Error:
        return ""
    return str(row[0]) if row else ""
