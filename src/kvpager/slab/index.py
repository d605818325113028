"""A hint of what the slabs hold, so that opening a store need not read every header. Never trusted on its own.

SQLite in WAL mode. It is believed only if its digest is that of its rows and its mark is the one in the file ``clean``, which
is removed before the first change and written again after each sync.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.files import Files
from kvpager.slab.record import FORMAT
from kvpager.slab.table import Records

__all__ = ["Index"]

_TABLES = """
create table if not exists meta (name text primary key, value text not null);
create table if not exists records (
    place integer primary key, key integer not null, layer integer not null, generation integer not null, checksums blob not null
);
"""


class Index:
    """The index of one store directory, whose lock the caller holds.

    Parameters
    ----------
    folder : Path
        The store's directory.
    identity : int
        Of the store's shape.
    parts, tag_bytes : int
        Of a record.
    files : Files
        Where the mark is written.

    Attributes
    ----------
    why_not : str
        Why the records could not be believed; empty if they could.
    generation : int
        The highest one in use at the last save; 0 if unknown.
    known : bool
        Whether `generation` is known.
    same_store : bool
        Whether the file, believed or not, was written for a store of this identity.
    broken : bool
        Whether the last save failed.
    """

    def __init__(self, folder: Path, identity: int, parts: int, tag_bytes: int, files: Files) -> None:
        self.path, self._mark = folder / "index.sqlite", folder / "clean"
        self._identity, self._parts, self._tag_bytes, self._files = str(identity), parts, tag_bytes, files
        self.why_not, self.generation, self.same_store, self.known = "", 0, False, False
        self.broken = False
        self._clean, self._next_mark = self._read_mark(), ""
        self._database: sqlite3.Connection | None = None

    def load(self) -> Records | None:
        """Return the records, or None if they cannot be believed: then `why_not` says why."""
        if not self.path.exists():
            self.why_not = "it is missing"
            return None
        try:
            database = self._open()
            meta = dict(database.execute("select name, value from meta"))
            rows = database.execute("select place, key, layer, generation, checksums from records").fetchall()
            records = self._records(rows)
            self.same_store = meta.get("identity") == self._identity
            generation = int(meta["generation"])
            if not self.same_store or meta.get("format") != str(FORMAT):
                self.why_not = "another version or store wrote it"
                return None
            if meta.get("digest") != _digest(records, generation):
                self.why_not = "its rows do not add up"
                return None
            self.generation, self.known = generation, True
            if not self._clean or meta.get("mark") != self._clean:
                self.why_not = "it is older than the data"
        except (sqlite3.Error, ValueError, KeyError, TypeError, OverflowError) as error:
            self.why_not = f"it cannot be read ({error})"
        return None if self.why_not else records

    def save(self, records: Records, changed: NDArray[np.int64] | None, generation: int, shape: str) -> None:
        """Make the file say `records`, all that the store holds; `set_clean` then says so.

        Parameters
        ----------
        records : Records
            Everything.
        changed : int64, optional
            The places whose record came, went or changed since the last save; None: the file may say anything.
        generation : int
            The highest one in use.
        shape : str
            The store's shape, for whoever opens the store without knowing it.
        """
        self.unset_clean()
        for again in (False, True):
            try:
                self._write(records, None if again else changed, generation, shape)
            except sqlite3.Error as error:
                self.broken, self.why_not = True, f"it cannot be written ({error})"
                self._discard()
            else:
                self.broken = False
                return

    def set_clean(self) -> None:
        """State that index and slabs agree."""
        if self.broken or self._clean:
            return
        self._clean = self._next_mark
        fd = self._files.open(self._mark, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._files.pwritev(fd, [memoryview(self._clean.encode())], 0)
            self._files.sync(fd)
        finally:
            self._files.close(fd)

    def unset_clean(self) -> None:
        """State that the slabs may hold what the index does not say. To be called before the slabs change."""
        if self._clean or self._mark.exists():
            self._files.remove(self._mark)
            self._clean = ""

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def _write(self, records: Records, changed: NDArray[np.int64] | None, generation: int, shape: str) -> None:
        """One transaction: the changed rows, and what says that the rows are right."""
        database = self._open()
        self._next_mark = secrets.token_hex(16)
        meta = {
            "format": str(FORMAT), "identity": self._identity, "shape": shape, "mark": self._next_mark,
            "digest": _digest(records, generation), "generation": str(generation),
        }  # fmt: skip
        if changed is not None:
            records = records.some(np.isin(records.place, changed))
        keys, generations = records.key.view(np.int64).tolist(), records.generation.view(np.int64).tolist()
        blobs = [sums.tobytes() + tag.tobytes() for sums, tag in zip(records.checksums.astype("<u8"), records.tag, strict=True)]
        rows = zip(records.place.tolist(), keys, records.layer.tolist(), generations, blobs, strict=True)
        with database:
            if changed is None:
                database.execute("delete from records")
            else:
                database.executemany("delete from records where place = ?", ((place,) for place in changed.tolist()))
            database.executemany("insert into records values (?, ?, ?, ?, ?)", rows)
            database.executemany("replace into meta values (?, ?)", meta.items())

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            database = sqlite3.connect(self.path, check_same_thread=False)
            try:
                database.execute(
                    "pragma locking_mode = exclusive"
                )  # the directory's lock is ours, and no shared memory is needed
                database.execute("pragma journal_mode = wal")
                database.execute("pragma synchronous = full")
                database.executescript(_TABLES)
            except sqlite3.Error:
                database.close()
                raise
            self._database = database
        return self._database

    def _discard(self) -> None:
        self.close()
        for ending in ("", "-wal", "-shm", "-journal"):
            self._files.remove(self.path.with_name(self.path.name + ending))

    def _records(self, rows: list[tuple[int, int, int, int, bytes]]) -> Records:
        places, keys, layers, generations, blobs = zip(*rows, strict=True) if rows else ((), (), (), (), ())
        said = np.frombuffer(b"".join(blobs), np.uint8).reshape(len(rows), 8 * self._parts + self._tag_bytes)
        checksums = said[:, : 8 * self._parts].copy().view("<u8")
        return Records(
            np.array(keys, np.int64).view(np.uint64), np.array(layers, np.int32), np.array(places, np.int64),
            np.array(generations, np.int64).view(np.uint64), checksums, said[:, 8 * self._parts :].copy(),
        )  # fmt: skip

    def _read_mark(self) -> str:
        """What the file ``clean`` says; empty if it is not there or is no text."""
        try:
            return self._mark.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return ""


def _digest(records: Records, generation: int) -> str:
    return str(records.digest() ^ generation)
