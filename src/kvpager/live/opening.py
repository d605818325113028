"""Opening a tiered store for a model, from sizes as people write them; and, if asked, logging what is done with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from kvpager.core import DRAM, NVME, KVGeometry
from kvpager.errors import BadInput
from kvpager.live.budget import LANES, LiveBudget, live_budget
from kvpager.live.fingerprint import fingerprint
from kvpager.live.layout import Layout
from kvpager.live.store import TieredStore, make_selector
from kvpager.live.summaries import SUMMARIES
from kvpager.runlog import LoggedDriver, LoggedTable
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.run import Event, RunHeader
from kvpager.traces.runcounts import RunTally
from kvpager.traces.runstore import RunWriter

__all__ = ["open_store", "plan_budget"]


def plan_budget(
    geometry: KVGeometry,
    *,
    context_tokens: int,
    hbm: str = "10%",
    dram: str = "0",
    rows: int = 1,
    selector: str | None = None,
    block_size: int = 16,
    element: str = "float32",
    keys: str | None = None,
) -> LiveBudget:
    """Work out the sizes of a live cache, key summaries included.

    Parameters
    ----------
    geometry : KVGeometry
        Of the model.
    context_tokens : int
        Longest context, generated tokens included.
    hbm, dram : str
        As `live_budget` takes them.
    rows : int
        Sequences of that length at once.
    selector : str, optional
        Its key summaries count as metadata.
    block_size : int
        Tokens of a block.
    element : str
        Element type of K and V.
    keys : {"tiered", "fast"}, optional
        Whether keys come and go with their values, or stay in fast memory; default as the selector needs them.

    Raises
    ------
    ModelError
        If the model's KV has no plain layout.
    CapacityError
        If HBM is too small; the message adds up what it must hold.
    """
    if keys not in (None, "tiered", "fast"):
        raise BadInput(f"keys {keys!r} cannot be kept: choose tiered or fast")
    chosen = None if selector is None else make_selector(selector)
    split = keys == "fast" or (keys is None and bool(getattr(chosen, "rerank", 0)))
    layout = Layout.of(geometry, block_size=block_size, element=element, split=split)
    name = getattr(chosen, "summary", None)
    per_unit = 0.0
    if name is not None:
        per_unit = SUMMARIES[name](layout.layers, layout.kv_heads, layout.k_dim, layout.block_size).bytes_per_block
    return live_budget(layout, context_tokens=context_tokens, hbm=hbm, dram=dram, rows=rows, summary_bytes_per_unit=per_unit)


@contextmanager
def open_store(
    loaded: Any,
    path: str | PathLike[str],
    budget: LiveBudget,
    *,
    policy: str = "blend",
    pool: str = "global",
    prefetcher: str | None = None,
    selector: str | None = None,
    disk_bytes: int | None = None,
    seed: int = 0,
    lockstep: bool = False,
    record: str | PathLike[str] | None = None,
    overwrite: bool = False,
    command: str = "",
) -> Iterator[TieredStore]:
    """Open a store for a model, for the length of a ``with`` block.

    Parameters
    ----------
    loaded : LoadedModel
        The model.
    path : path
        Directory of the backing store.
    budget : LiveBudget
        From `plan_budget`.
    policy, pool : str
        As `TieredStore` takes them.
    prefetcher, selector : str, optional
        As `TieredStore` takes them.
    disk_bytes : int, optional
        As `TieredStore` takes it.
    seed : int
        Of the ties.
    lockstep : bool
        As `TieredStore` takes it.
    record : path, optional
        Run recording to write: every call of the Pager, for ``kvpager replay``.
    overwrite : bool
        Replace a run recording at that path.
    command : str
        For the recording's header.

    Raises
    ------
    StoreError, CapacityError, TraceError
        If the directory, the sizes or the recording's path cannot be used.
    """
    layout, geometry = budget.layout, loaded.geometry
    options: dict[str, Any] = {}
    with ExitStack() as stack:
        if record is not None:
            header = RunHeader(
                loaded.name, loaded.weights_sha256, geometry, geometry.full_layers, layout.kv_heads, layout.block_size, "head",
                layout.unit_bytes, "exact" if selector is None else "selective", selector or "dense", policy,
                budget.pager(0, prefetching=prefetcher is not None), pool, seed, LANES, lockstep, prefetcher,
                versions_of(["numpy", "torch", "transformers", "zarr"]), this_machine(), command, now(),
            )  # fmt: skip
            writer = stack.enter_context(RunWriter(Path(record), header, overwrite=overwrite))
            tally = RunTally()

            def sink(event: Event) -> None:
                writer.append(event)
                tally(event)

            options = {"make_table": partial(LoggedTable, sink=sink), "make_driver": partial(LoggedDriver, sink=sink)}
        store = TieredStore(
            budget, path, fingerprint=fingerprint(loaded, layout), layer_numbers=geometry.full_layers, policy=policy, pool=pool,
            prefetcher=prefetcher, selector=selector, disk_bytes=disk_bytes, seed=seed, lockstep=lockstep,
            device=str(loaded.model.device), **options,
        )  # fmt: skip
        stack.enter_context(store)
        yield store
        if record is not None and getattr(store.driver, "telling", False):
            writer.close(tally.counts.document({DRAM: store.dram, NVME: store.disk}, layout.unit_bytes))
