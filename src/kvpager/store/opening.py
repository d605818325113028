"""Opening a block store: as its owner, or through the process that owns it."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from kvpager.errors import BadInput
from kvpager.slab.files import Files
from kvpager.store.blockstore import BlockStore
from kvpager.store.client import Client
from kvpager.store.engine import Settings
from kvpager.store.keys import Namespace, tenant_id
from kvpager.store.rack import lock
from kvpager.store.server import Owner
from kvpager.units import parse_bytes

__all__ = ["open_store"]


def open_store(
    path: str | PathLike[str], capacity: int | str, namespace: Namespace | None, tenant: bytes, policy: str,
    quotas: Mapping[bytes, int | str] | None, watermarks: tuple[float, float], deadline_s: float, quarantine_s: float,
    staging_bytes: int, files: Files | None, log: str | PathLike[str] | None,
) -> BlockStore:  # fmt: skip
    """See `kvpager.store.open`."""
    most = {tenant_id(name): _bytes(size, "quota") for name, size in (quotas or {}).items()}
    settings = Settings(
        Path(path), _bytes(capacity, "capacity"), policy, most, *watermarks, quarantine_s, staging_bytes, files or Files(),
        None if log is None else Path(log),
    )  # fmt: skip
    if not deadline_s > 0:
        raise BadInput(f"deadline_s = {deadline_s}: give seconds above 0")
    fd = lock(settings.path, settings.files)
    backend = Owner(settings, fd) if fd >= 0 else Client(settings, deadline_s)
    return BlockStore(backend, namespace or Namespace(), tenant, deadline_s)


def _bytes(size: int | str, what: str) -> int:
    count = parse_bytes(size) if isinstance(size, str) else int(size)
    if count < 0:
        raise BadInput(f"{what} = {size}: give bytes, 0 or more")
    return count
