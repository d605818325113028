"""What ``kvpager store`` says of a block store. One that is in use is asked through the process that owns it."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kvpager.cli.root import print_json
from kvpager.errors import StoreError
from kvpager.units import format_bytes

if TYPE_CHECKING:
    from kvpager.store.blockstore import BlockStore

__all__ = ["block_actions", "serve"]

_Result = tuple[dict[str, Any], list[str], bool]
_SHOWN = 10


def block_actions(folder: Path) -> dict[str, Callable[[Path], _Result]]:
    """Return what can be done with the block store in `folder`; nothing if there is none."""
    from kvpager.store.rack import is_block_store

    if not is_block_store(folder):
        return {}
    return {"info": _with(_info), "verify": _with(_verify), "gc": _with(_gc), "top": _with(_top)}


def serve(folder: Path, port: int | None, address: str, log: Path | None, *, json: bool) -> None:
    """Keep the block store in `folder` open until a signal ends this; with a port, give its metrics out."""
    from kvpager import store
    from kvpager.store.metrics import Endpoint

    stop = threading.Event()
    with store.open(folder, log=log) as blocks:
        endpoint = None if port is None else Endpoint(blocks, port, address)
        before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            where = endpoint.url if endpoint else None
            if json:
                print_json({"serving": folder.name, "metrics": where})
            else:
                typer.echo(f"serving {folder.name!r}" + (f", metrics at {where}" if where else ""))
            sys.stdout.flush()
            stop.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if endpoint is not None:
                endpoint.close()


def _with(do: Callable[[BlockStore], _Result]) -> Callable[[Path], _Result]:
    def opened(folder: Path) -> _Result:
        from kvpager import store

        with store.open(folder, deadline_s=600.0) as blocks:
            return do(blocks)

    return opened


def _info(blocks: BlockStore) -> _Result:
    said = _answered(blocks.stats())
    lines = [
        f"holds          {said['blocks']} blocks, {format_bytes(said['used_bytes'])}",
        f"on disk        {format_bytes(said['disk_bytes'])}, of {format_bytes(said['capacity_bytes'])} at most",
        f"set aside      {format_bytes(said['set_aside_bytes'])} ('kvpager store gc' deletes that)",
        f"tenants        {len(said['tenants'])}",
        *said["notices"],
    ]
    return {"kind": "blocks", **said}, lines, True


def _verify(blocks: BlockStore) -> _Result:
    damage, said = blocks.verify(), _answered(blocks.stats())
    document = {
        "sound": not damage, "records": said["blocks"], "notices": said["notices"],
        "damage": [{"where": where, "what": what} for where, what in damage],
    }  # fmt: skip
    lines = [
        *(f"{where}: {what}" for where, what in damage), *said["notices"],
        f"{said['blocks']} blocks read: {f'{len(damage)} things are damaged' if damage else 'all are as they were written'}",
    ]  # fmt: skip
    return document, lines, not damage


def _gc(blocks: BlockStore) -> _Result:
    freed = blocks.sweep()
    said = _answered(blocks.stats())
    document = {
        "given_back_bytes": freed, "disk_bytes": said["disk_bytes"], "records": said["blocks"], "notices": said["notices"]
    }  # fmt: skip
    return document, [f"{format_bytes(freed)} given back to the file system", f"{said['blocks']} blocks kept"], True


def _top(blocks: BlockStore) -> _Result:
    found = blocks.scan(everyone=True)
    tenants: Counter[str] = Counter()
    namespaces: Counter[str] = Counter()
    for one in found:
        tenants[one.tenant.hex()] += one.length
        namespaces[one.namespace.hex()] += one.length
    hottest = sorted(found, key=lambda one: (-one.reads, one.digest))[:_SHOWN]
    document = {
        "tenants": [{"id": name, "bytes": count} for name, count in tenants.most_common(_SHOWN)],
        "namespaces": [{"id": name, "bytes": count} for name, count in namespaces.most_common(_SHOWN)],
        "blocks": [{"digest": one.digest.hex(), "reads": one.reads, "bytes": one.length} for one in hottest],
    }  # fmt: skip
    lines = ["tenants", *(f"  {name}  {format_bytes(count)}" for name, count in tenants.most_common(_SHOWN))]
    lines += ["namespaces", *(f"  {name}  {format_bytes(count)}" for name, count in namespaces.most_common(_SHOWN))]
    lines += ["blocks, by reads since the store was opened"]
    lines += [f"  {one.digest.hex()[:16]}  {one.reads} reads, {format_bytes(one.length)}" for one in hottest]
    return document, lines, True


def _answered(said: dict[str, Any]) -> dict[str, Any]:
    if not said:
        raise StoreError("the process that owns the store does not answer: try again, or end it")
    return said
