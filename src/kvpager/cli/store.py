"""The command that looks after a store, the live cache's or a block store: what it holds, if it is sound, what is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput

__all__ = ["store"]

_Result = tuple[dict[str, Any], list[str], bool]


@app.command(epilog="Example: kvpager store verify kv-store; kvpager store serve kv-blocks --metrics 9464")
def store(
    action: Annotated[str, typer.Argument(metavar="info|verify|gc|top|serve", help="What to do.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory that was given as --store, or a block store's.")],
    metrics: Annotated[int | None, typer.Option(metavar="PORT", min=0, max=65_535, help="serve: metrics there; 0 = any.")] = None,
    address: Annotated[str, typer.Option(help="serve: who can reach the metrics; else this machine alone.")] = "127.0.0.1",
    log: Annotated[Path | None, typer.Option(metavar="FILE", help="serve: events there, if this process owns the store.")] = None,
    json: Json = False,
) -> None:
    """Look after a live cache's store that no process is using, or after a block store (kvpager.store), in use or not.

    info shows its size and its sessions. verify reads everything back and ends with exit code 1 if anything is damaged or
    missing. gc removes the blocks that no session in DIR/sessions needs, and the files that are empty then; of a block store,
    files that are empty or were set aside. top shows a block store's largest tenants and namespaces, and the blocks read most.
    serve keeps a block store open for other processes, with metrics for Prometheus, until it is interrupted.
    """
    if action != "serve" and (metrics is not None or log is not None):
        raise BadInput(f"--metrics and --log are of 'kvpager store serve', not of {action!r}: leave them out")
    actions: dict[str, Callable[[Path], _Result]] = {
        "info": _info, "verify": _verify, "gc": _gc, "top": _block_stores_only, "serve": _block_stores_only
    }  # fmt: skip
    if action in actions and folder.is_dir() and not list(folder.glob("slab-*.kv")):
        from kvpager.cli.blocks import block_actions, serve

        found = block_actions(folder)
        if found and action == "serve":
            serve(folder, metrics, address, log, json=json)
            return
        actions |= found
    if action not in actions:
        raise BadInput(f"unknown action {action!r}: choose among {', '.join(actions)}")
    document, lines, sound = actions[action](folder)
    if json:
        print_json(document)
    else:
        typer.echo("\n".join(lines))
    if not sound:
        raise typer.Exit(1)


def _info(folder: Path) -> _Result:
    from dataclasses import asdict

    import numpy as np

    from kvpager.slab.sessions import open_store, sessions_in
    from kvpager.units import format_bytes

    found = sessions_in(folder)
    with open_store(folder) as store:
        sessions: list[dict[str, Any]] = [
            {
                "id": session.id, "tokens": session.tokens, "blocks": len(session.keys), "bytes": store.bytes_of(session.keys)
            }
            for session in found
        ]  # fmt: skip
        needed = store.bytes_of(np.concatenate([np.zeros(0, np.uint64), *(session.keys for session in found)]))
        document: dict[str, Any] = {
            "shape": asdict(store.shape), "blocks": store.blocks, "records": store.records, "used_bytes": store.used_bytes,
            "disk_bytes": store.disk_bytes, "unneeded_bytes": store.used_bytes - needed, "sessions": sessions,
            "notices": store.stats.notices,
        }  # fmt: skip
        shape = store.shape
        lines = [
            f"made for       {shape.fingerprint}",
            f"a record       {shape.parts} parts of {format_bytes(shape.part_bytes)}; a block has {shape.layers} layers",
            f"holds          {store.blocks} blocks, {store.records} records, {format_bytes(store.used_bytes)}",
            f"on disk        {format_bytes(store.disk_bytes)} in {store.disk_bytes // shape.slab_bytes} slabs",
            f"needed by none {format_bytes(document['unneeded_bytes'])} ('kvpager store gc' removes that)",
            f"sessions       {len(sessions)}",
            *(
                f"  {one['id']}  {_tokens(one['tokens'])}, {one['blocks']} blocks, {format_bytes(one['bytes'])}"
                for one in sessions
            ),
            *store.stats.notices,
        ]
    return document, lines, True


def _verify(folder: Path) -> _Result:
    from kvpager.slab.sessions import missing, open_store, sessions_in

    with open_store(folder) as store:
        damage = [*store.verify(), *missing(store, sessions_in(folder))]
        notices, records = store.stats.notices, store.records
    document = {
        "sound": not damage, "records": records, "notices": notices,
        "damage": [{"where": one.where, "what": one.what, "key": one.key, "layer": one.layer} for one in damage],
    }  # fmt: skip
    lines = [
        *(f"{one.where}: {one.what}" + (f", key {one.key:#x}, layer {one.layer}" if one.layer >= 0 else "") for one in damage),
        *notices,
        f"{records} records read: {f'{len(damage)} things are damaged or missing' if damage else 'all are as they were written'}",
    ]
    return document, lines, not damage


def _gc(folder: Path) -> _Result:
    import numpy as np

    from kvpager.slab.sessions import open_store, sessions_in
    from kvpager.units import format_bytes

    sessions = sessions_in(folder)
    with open_store(folder) as store:
        before = store.disk_bytes
        freed = store.keep_only(np.concatenate([np.zeros(0, np.uint64), *(session.keys for session in sessions)]))
        document: dict[str, Any] = {
            "freed_bytes": freed, "given_back_bytes": before - store.disk_bytes, "disk_bytes": store.disk_bytes,
            "records": store.records, "sessions": len(sessions), "notices": store.stats.notices,
        }  # fmt: skip
    lines = [
        f"{format_bytes(freed)} freed, {format_bytes(document['given_back_bytes'])} given back to the file system",
        f"{document['records']} records of {len(sessions)} sessions kept",
        *store.stats.notices,
    ]
    return document, lines, True


def _block_stores_only(folder: Path) -> _Result:
    raise BadInput(f"{str(folder)!r} is no block store, and 'top' and 'serve' are for one: see 'kvpager store info'")


def _tokens(count: int | None) -> str:
    return "tokens not stated" if count is None else f"{count} tokens"
