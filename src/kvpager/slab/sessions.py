"""Opening a store by its directory alone, and the sessions in it that say which blocks are still needed.

A session is a file ``DIR/sessions/ID.json`` of the live cache: an object with a list ``keys``, the store's keys of its blocks,
and ``tokens``, how many or which.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvpager.errors import StoreError
from kvpager.slab.folder import shape_of, slabs_in
from kvpager.slab.record import U64
from kvpager.slab.scan import Damage
from kvpager.slab.store import SlabStore

__all__ = ["SessionFile", "missing", "open_store", "sessions_in"]


class SessionFile(NamedTuple):
    """What a session's file says about the store."""

    id: str
    tokens: int | None
    """How many; None if the file does not say."""
    keys: U64
    """Of its blocks, uint64."""


def open_store(path: Path) -> SlabStore:
    """Open the store in `path`, as large as it is.

    Raises
    ------
    StoreError
        If there is none, it does not say what it is, or it is in use.
    """
    shape = shape_of(path)
    slabs = max(slabs_in(path), default=0) + 1
    return SlabStore(
        path, parts=shape.parts, part_bytes=shape.part_bytes, layers=shape.layers, fingerprint=shape.fingerprint,
        slab_bytes=shape.slab_bytes, capacity_bytes=slabs * shape.slab_bytes,
    )  # fmt: skip


def sessions_in(path: Path) -> list[SessionFile]:
    """Return the sessions of the store in `path`, by id.

    Raises
    ------
    StoreError
        If a file cannot be understood: which blocks it needs is then unknown.
    """
    found = []
    for file in sorted((path / "sessions").glob("*.json")):
        try:
            said = json.loads(file.read_bytes())
            tokens = said.get("tokens")
            count = len(tokens) if isinstance(tokens, list) else tokens
            found.append(SessionFile(file.stem, count, np.array([int(key) for key in said["keys"]], np.uint64)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise StoreError(
                f"session file {str(file)!r} does not list its keys: mend it, or remove it to drop the session"
            ) from error
    return found


def missing(store: SlabStore, sessions: list[SessionFile]) -> list[Damage]:
    """Return the records that sessions need and the store does not hold."""
    layers = np.arange(store.shape.layers, dtype=np.int32)
    found = []
    for session in sessions:
        keys, layer = session.keys.repeat(len(layers)), np.tile(layers, len(session.keys))
        gone = ~store.holds(keys, layer)
        for key, number in zip(keys[gone].tolist(), layer[gone].tolist(), strict=True):
            found.append(Damage(f"session {session.id}", "missing", key, number))
    return found
