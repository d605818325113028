"""What is known of a block, and how it stands on disk beside the block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.files import PAGE_BYTES
from kvpager.slab.table import Records
from kvpager.store.sizes import place_bytes

__all__ = ["TAG_BYTES", "BlockInfo", "Entry", "entries_of", "tags_of"]

_TAG = np.dtype(
    [("digest", "u1", 32), ("parent", "u1", 32), ("tenant", "u1", 16), ("namespace", "u1", 16),
     ("sequence", "<u8"), ("length", "<u8"), ("spare", "u1", 16)]
)  # fmt: skip
TAG_BYTES = _TAG.itemsize
_NONE = bytes(32)


@dataclass(slots=True)
class Entry:
    """A block that is held, or being written."""

    digest: bytes
    """Its name."""
    parent: bytes
    """Name of the block before it; empty: none."""
    tenant: bytes
    """Id of whose it is."""
    namespace: bytes
    """Id of the namespace."""
    length: int
    """Bytes of its payload."""
    sequence: int
    """Of two with one name the higher one counts."""
    key: int = 0
    """In the store of its size."""
    pinned_until: float = 0.0
    """By the monotonic clock."""
    hidden_until: float = 0.0
    """In quarantine till then, by the monotonic clock."""
    failures: int = 0
    """Reads that failed."""
    reads: int = 0
    """Since the store was opened."""
    came_s: float = 0.0
    """When it was acknowledged, by the monotonic clock; 0: before the store was opened."""
    used_s: float = 0.0
    """When it was put or read last; 0: not since the store was opened."""
    size: int = field(init=False)
    """Of its place."""
    disk_bytes: int = field(init=False)
    """What it takes on disk."""

    def __post_init__(self) -> None:
        """Work out its sizes once: they are asked for often."""
        self.size = place_bytes(self.length)
        self.disk_bytes = PAGE_BYTES + self.size


class BlockInfo(NamedTuple):
    """What `scan` tells of a block."""

    digest: bytes
    """SHA-256 of namespace, tenant and key."""
    parent: bytes
    """Digest of the block before it; empty: none."""
    tenant: bytes
    """Id of whose it is, 16 bytes."""
    namespace: bytes
    """Id of its namespace, 16 bytes."""
    length: int
    """Bytes."""
    reads: int
    """Since the store was opened."""


def tags_of(entries: list[Entry]) -> NDArray[np.uint8]:
    """Return uint8 [entries, TAG_BYTES]."""
    tags = np.zeros(len(entries), _TAG)
    for row, entry in zip(tags, entries, strict=True):
        for name in ("digest", "parent", "tenant", "namespace"):
            row[name] = np.frombuffer(getattr(entry, name) or _NONE, np.uint8)
        row["sequence"], row["length"] = entry.sequence, entry.length
    return tags.view(np.uint8).reshape(len(entries), TAG_BYTES)


def entries_of(records: Records, size: int) -> tuple[list[Entry], list[int]]:
    """Return the blocks that `records` of places of `size` bytes are, and the keys of those that are none."""
    tags = np.ascontiguousarray(records.tag).view(_TAG).reshape(-1)
    found, wrong = [], []
    for key, tag in zip(records.key.tolist(), tags, strict=True):
        digest, parent, tenant, namespace = (tag[name].tobytes() for name in ("digest", "parent", "tenant", "namespace"))
        entry = Entry(
            digest, b"" if parent == _NONE else parent, tenant, namespace, int(tag["length"]), int(tag["sequence"]), key
        )
        if entry.size == size and entry.sequence:
            found.append(entry)
        else:
            wrong.append(key)
    return found, wrong
