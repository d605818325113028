"""The public block store: blocks of bytes by key, on disk, checked at every read, bounded, shared by processes.

`open` is the door, docs/store.md the page about it. It stands on `kvpager.slab`: record, checksum, index and recovery are
there, and only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from kvpager.store.keys import Namespace, chain

if TYPE_CHECKING:
    from kvpager.slab.files import Files
    from kvpager.store.blockstore import BlockStore as BlockStore

__all__ = ["BlockStore", "Namespace", "chain", "open"]


def open(
    path: str | PathLike[str], capacity: int | str = 0, *, namespace: Namespace | None = None, tenant: bytes = b"",
    policy: str = "lru", quotas: Mapping[bytes, int | str] | None = None, watermarks: tuple[float, float] = (0.9, 0.95),
    deadline_s: float = 30.0, quarantine_s: float = 60.0, staging_bytes: int = 128 << 20, files: Files | None = None,
    log: str | PathLike[str] | None = None,
) -> BlockStore:  # fmt: skip
    """Open the block store in `path`, or make it.

    Parameters
    ----------
    path : path
        A directory of its own. Made, for its owner alone, if it is not there.
    capacity : int or str
        Bytes of all slab files together, never exceeded, or a text such as ``"8GiB"``; 0: as it was opened last.
    namespace : Namespace, optional
        What must be equal for one run to use another's blocks.
    tenant : bytes
        Salt: blocks of another tenant cannot be named.
    policy : str
        Which blocks leave first: ``lru``, ``ema`` or ``s3-fifo``.
    quotas : dict of bytes to int or str, optional
        Bytes on disk that a tenant may take; one that would take more evicts its own blocks.
    watermarks : (float, float)
        Above the second share of the capacity, blocks are evicted down to the first.
    deadline_s : float
        Seconds after which a call is back, whatever the disk does.
    quarantine_s : float
        For how long a block that could not be read, or came too late, is not found. A second time: till it is opened again.
    staging_bytes : int
        Of memory for each size of blocks that is in use.
    files : Files, optional
        The file layer.
    log : path, optional
        A file to which each event is appended as a line of JSON: see docs/operations.md.

    Raises
    ------
    StoreError
        For a directory that cannot be written, holds something else or was made by another version.
    StorageFull
        If there is no room on the disk for what a store is at least.
    BadInput
        For settings that cannot be used.
    """
    from kvpager.store.opening import open_store

    return open_store(
        path, capacity, namespace, tenant, policy, quotas, watermarks, deadline_s, quarantine_s, staging_bytes, files, log
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the store when it is asked for: keys alone are wanted where xxhash is not installed."""
    if name == "BlockStore":
        from kvpager.store.blockstore import BlockStore

        return BlockStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
