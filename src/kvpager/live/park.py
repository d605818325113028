"""Parked sessions: what is kept of a sequence on disk, how it gets there, and how it comes back.

::

    DIR/sessions/ID.json                    tokens, keys of the sealed blocks, fingerprint; and a checksum of it all
    DIR/sessions/ID.<digest>.safetensors    arrays: bytes of the open block, key summaries, states of other layers

The sealed blocks stay where they are, in the slabs. A file is written as a draft, made durable, and renamed; the arrays
come first, under a name of their own. So a crash at any moment leaves the old state or the new one, whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from kvpager.core import Ids
from kvpager.errors import BadInput, StorageFull, StoreError
from kvpager.slab.files import Files, write_fully

if TYPE_CHECKING:
    from kvpager.live.engine import Batch
    from kvpager.live.store import TieredStore

__all__ = ["VERSION", "Parked", "Shelf"]

VERSION = 1
U64 = NDArray[np.uint64]

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Parked:
    """A session as it is on disk.

    Attributes
    ----------
    id : str
        Its name.
    fingerprint : str
        Of the model and the layout.
    tokens : list of int
        All of them.
    cached : int
        How many of them are in the cache.
    keys : uint64 [sealed blocks]
        The backing store's keys of the blocks that are sealed, in order.
    summary : str or None
        Which kind of key summaries is among the arrays.
    arrays : dict of str to Tensor
        What cannot be found elsewhere.
    """

    id: str
    fingerprint: str
    tokens: list[int]
    cached: int
    keys: U64
    summary: str | None
    arrays: dict[str, Tensor]


class Shelf:
    """The sessions of one store: those parked on its disk, and those open in this process.

    Parameters
    ----------
    store : TieredStore
        The store.
    files : Files, optional
        The file layer.

    Attributes
    ----------
    open : dict of str to Batch
        Open sessions, by id.
    """

    def __init__(self, store: TieredStore, files: Files | None = None) -> None:
        self._store, self._folder, self._files = store, store.path / "sessions", files or Files()
        self.open: dict[str, Batch] = {}

    def ids(self) -> list[str]:
        """Return the ids of all parked sessions."""
        return sorted(path.stem for path in self._folder.glob("*.json"))

    def __contains__(self, id: str) -> bool:
        return self._file(id).exists()

    def new_id(self, wanted: str | None) -> str:
        """Return an id for a new session: `wanted`, or a random one.

        Raises
        ------
        BadInput
            If it is taken, or has other characters than letters, digits, dots, dashes and underscores.
        """
        if wanted is None:
            while (drawn := secrets.token_hex(4)) in self.open or drawn in self:
                pass
            return drawn
        if wanted in self.open or wanted in self:
            state = "open" if wanted in self.open else "parked"
            raise BadInput(f"session {wanted!r} is {state} already: resume it, drop it, or choose another id")
        return wanted

    def write(self, parked: Parked, blocks: Ids) -> None:
        """Park a session durably, in place of what was parked under its id.

        Parameters
        ----------
        parked : Parked
            The session.
        blocks : int32 [sealed blocks]
            The table's numbers of the blocks that it names by keys: their records stay when they go.

        Raises
        ------
        StorageFull, StoreError
            If the disk is full, or refuses. What was parked before stays.
        """
        before = self._keys(parked.id)
        content = save({name: array.contiguous() for name, array in parked.arrays.items()})
        digest = hashlib.sha256(content).hexdigest()
        arrays = f"{parked.id}.{digest[:16]}.safetensors"
        document: dict[str, Any] = {
            "version": VERSION, "id": parked.id, "fingerprint": parked.fingerprint, "tokens": parked.tokens,
            "cached": parked.cached, "keys": parked.keys.tolist(), "summary": parked.summary,
            "arrays": {"file": arrays, "sha256": digest},
        }  # fmt: skip
        document["sha256"] = _digest(document)
        try:
            self._make_folder()
            self._write(arrays, content)
            self._write(self._file(parked.id).name, json.dumps(document).encode())
        except OSError as error:
            kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
            raise kind(
                f"session {parked.id!r} cannot be parked in {str(self._folder)!r} ({error.strerror}): free disk space, or drop "
                "sessions; what was parked before is unharmed"
            ) from error
        finally:  # a file that was renamed counts, whatever failed after that
            named = self._keys(parked.id)
            if named is None or np.array_equal(named, parked.keys):
                self._store.disk.adopt(blocks, parked.keys)
        self._tidy(parked.id, arrays)
        self._disown(before, parked.keys)

    def read(self, id: str) -> Parked:
        """Return a parked session.

        Raises
        ------
        StoreError
            If there is none of that id, or it is damaged, of a newer version, or of another model or layout.
        """
        document = self._document(id)
        if document is None:
            there = ", ".join(self.ids()[:8]) or "none"
            raise StoreError(f"store {str(self._store.path)!r} has no parked session {id!r}: it has {there}")
        try:
            content = (self._folder / document["arrays"]["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != document["arrays"]["sha256"]:
                raise self._damaged(id)
            arrays = load(content)
        except (OSError, SafetensorError) as error:
            raise self._damaged(id) from error
        keys = np.array(document["keys"], np.uint64)
        return Parked(id, document["fingerprint"], document["tokens"], document["cached"], keys, document["summary"], arrays)

    def remove(self, id: str) -> None:
        """Drop a parked session; blocks that another session, parked or open, holds stay. Unknown ids are no error."""
        keys = self._keys(id)
        if id not in self:
            return
        try:
            self._files.remove(self._file(id))
            self._files.sync_folder(self._folder)
        except OSError as error:
            raise StoreError(
                f"session {id!r} cannot be dropped from {str(self._folder)!r} ({error.strerror}): check the disk"
            ) from error
        self._tidy(id, "")
        self._disown(keys, np.empty(0, np.uint64))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _file(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise BadInput(f"session id {id!r} is not 1 to 64 letters, digits, dots, dashes and underscores: choose another")
        return self._folder / f"{id}.json"

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._files.make_folder(self._folder)
            self._files.sync_folder(self._store.path)

    def _write(self, name: str, content: bytes) -> None:
        """Make `content` the file `name`, durably and at once."""
        draft = self._folder / f"{name}.draft"
        try:
            fd = self._files.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                write_fully(self._files, fd, [memoryview(content)], 0)
                self._files.sync(fd)
            finally:
                self._files.close(fd)
            self._files.rename(draft, self._folder / name)
        except OSError:
            self._files.remove(draft)
            raise
        self._files.sync_folder(self._folder)

    def _tidy(self, id: str, but: str) -> None:
        """Remove array files of `id` that its file does not name, and drafts."""
        own = re.compile(rf"{re.escape(id)}\.([0-9a-f]{{16}}\.safetensors|json)(\.draft)?")
        for path in self._folder.iterdir():
            if own.fullmatch(path.name) and path.name not in (but, self._file(id).name):
                with contextlib.suppress(OSError):
                    self._files.remove(path)

    def _document(self, id: str) -> dict[str, Any] | None:
        """What the file of `id` says; None if there is none. Raise `StoreError` if it cannot be believed or understood."""
        try:
            document: dict[str, Any] = json.loads(self._file(id).read_bytes())
            newer = document["version"] > VERSION
            if not newer and (document.pop("sha256") != _digest(document) or document["id"] != id):
                raise self._damaged(id)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise self._damaged(id) from error
        if newer:
            raise StoreError(f"session {id!r} was written by a newer version of kvpager: resume it with that one")
        return document

    def _keys(self, id: str) -> U64 | None:
        """Keys that a parked session names; none if it is not parked, None if that cannot be known."""
        try:
            document = self._document(id)
        except StoreError:
            return None
        return np.array([] if document is None else document["keys"], np.uint64)

    def _disown(self, keys: U64 | None, but: U64) -> None:
        """Give up `keys` that no parked session names any more; unless it cannot be known which those are."""
        named = [but, *(self._keys(id) for id in self.ids())] if keys is not None and len(keys) else []
        known = [some for some in named if some is not None]
        if keys is not None and len(keys) and len(known) == len(named):
            self._store.disk.disown(keys[~np.isin(keys, np.concatenate(known))])

    def _damaged(self, id: str) -> StoreError:
        return StoreError(f"session {id!r} in {str(self._folder)!r} is damaged: drop it, and prefill its text again")


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
