"""A sequence leaves the tiered store for disk, and comes back: sealed blocks by their keys, the rest byte by byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvpager.core import RECOMPUTE, Ids, Tick
from kvpager.errors import StorageFull, StoreError
from kvpager.live.engine import Batch
from kvpager.live.park import U64, Parked
from kvpager.live.reshape import end, open_blocks
from kvpager.live.rows import Row, places
from kvpager.live.stream import GROUP_BLOCKS

if TYPE_CHECKING:
    from kvpager.live.store import TieredStore

__all__ = ["first_lost", "keys_of", "put_back", "settle", "summarise_again", "take"]

_TRIES = 3
"""How often a backup that fails is waited for; each try issues it again."""


def settle(store: TieredStore, batch: Batch) -> None:
    """Seal full blocks, and wait until every backup is acknowledged.

    Raises
    ------
    StorageFull, StoreError
        If the backing store does not take them.
    """
    tick = Tick(store.next_step(), 0)
    store.driver.begin(tick)
    batch.seal(tick)
    sealed = store.table.whole(np.concatenate([np.empty(0, np.int32), *(row.bases[: row.sealed] for row in batch.rows)]))
    for _ in range(_TRIES):
        store.slabs.drain()
        store.driver.begin(tick)
        if store.pager.pages.acked[sealed].all():
            return
    if store.driver.full is not None:
        raise StorageFull(f"session {batch.name!r} cannot be parked: {store.driver.full}")
    raise StoreError(f"session {batch.name!r} cannot be parked: {str(store.path)!r} does not take its blocks; check the disk")


def keys_of(store: TieredStore, row: Row) -> U64:
    """Return the backing store's keys of a row's sealed blocks."""
    return store.disk.keys_of(row.bases[: row.sealed] // store.table.units_per_block)


def first_lost(store: TieredStore, row: Row) -> int | None:
    """Return the first sealed block of a row that has no copy left; None if there is none."""
    table, layers = store.table, np.arange(store.layout.layers, dtype=np.int32)
    keys = keys_of(store, row)
    held = store.slabs.holds(keys.repeat(len(layers)), np.tile(layers, len(keys))).reshape(len(keys), len(layers)).all(1)
    units = table.whole(row.bases[: row.sealed]).reshape(len(keys), table.units_per_block)
    lost = np.flatnonzero(~held | (store.pager.pages.where[units] == RECOMPUTE).any(1))
    return int(lost[0]) if len(lost) else None


def take(store: TieredStore, row: Row) -> dict[str, Tensor]:
    """Return all that must be kept of a settled row beside its sealed blocks."""
    table, layout = store.table, store.layout
    arrays = {f"previous.{layer}": torch.from_numpy(mask) for layer, mask in row.previous.items()}
    used = row.tokens - row.sealed * table.block_size
    if used:
        content = torch.from_numpy(store.memory.content(table.whole(row.bases[row.sealed :])))
        layout.whole.keys(content)[..., used:] = 0  # what the slots held before is none of the session's
        layout.whole.values(content)[:, used:] = 0
        arrays["open"] = content
    if store.summary is not None and row.sealed:
        known = store.summary.take(row.bases[: row.sealed] // table.units_per_block)
        arrays |= {f"summary.{name}": torch.from_numpy(np.ascontiguousarray(array)) for name, array in known.items()}
    if store.scores is not None:
        arrays["scores"] = torch.from_numpy(store.scores.take(table.whole(row.bases)))
    return arrays


def put_back(store: TieredStore, parked: Parked) -> Row:
    """Return a row that holds what was parked; blocks that an open session has are shared with it.

    Raises
    ------
    CapacityError
        If HBM cannot hold its open block.
    """
    table, tick = store.table, Tick(store.next_step(), 0)
    store.driver.begin(tick)
    row = _twin(store, parked.keys)
    try:
        missing = len(parked.keys) - row.sealed
        if missing:
            units = table.open_many(row.sequence, missing)
            table.seal(units)
            store.disk.adopt(units[:: table.units_per_block] // table.units_per_block, parked.keys[row.sealed :])
            store.driver.adopt(tick, units)
            store.load_keys(units)
        row.sealed, row.tokens = len(parked.keys), parked.cached
        if "open" in parked.arrays:
            table.open_many(row.sequence, 1)
            row.refresh(table)
            store.memory.fill(open_blocks(store, row.bases[row.sealed :]), parked.arrays["open"].numpy())
    except BaseException:
        end(store, [row])
        raise
    row.refresh(table)
    for name, array in parked.arrays.items():
        kind, _, layer = name.partition(".")
        if kind == "previous":
            row.previous[int(layer)] = array.numpy()
    if store.scores is not None and "scores" in parked.arrays:
        store.scores.give(table.whole(row.bases), parked.arrays["scores"].numpy())
    return row


def summarise_again(store: TieredStore, parked: Parked, row: Row) -> None:
    """Give the summaries of a row's sealed blocks back, or read the keys again if others were parked.

    Raises
    ------
    UnitsLost
        If a block has no good copy.
    """
    if store.summary is None or not row.sealed:
        return
    table = store.table
    bases = row.bases[: row.sealed]
    if parked.summary == store.summary_name:
        mark = "summary."
        known = {name.removeprefix(mark): array.numpy() for name, array in parked.arrays.items() if name.startswith(mark)}
        store.summary.give(bases // table.units_per_block, known)
        return
    step = store.next_step()
    for layer in range(store.layout.layers):
        store.driver.begin(Tick(step, layer))
        for first in range(0, len(bases), GROUP_BLOCKS):
            _read_keys(store, Tick(step, layer), bases[first : first + GROUP_BLOCKS])


def _read_keys(store: TieredStore, tick: Tick, bases: Ids) -> None:
    """Read the keys of a layer's blocks, and put their summary."""
    layout, summary = store.layout, store.summary
    keys = np.empty((len(bases), layout.kv_heads, layout.block_size, layout.k_dim), np.float32)

    def gather(units: Ids) -> None:
        keys[places(store.table, bases, units)] = store.keys[store.key_index(units)].float().mT.cpu().numpy()

    store.counts.streamed(store.driver.stream(tick, store.table.at_layer(bases, tick.layer), gather))
    if summary is not None:
        summary.put(tick.layer, bases // store.table.units_per_block, keys)


def _twin(store: TieredStore, keys: U64) -> Row:
    """Return a new row with those of `keys`' blocks that an open session holds, as a shared beginning."""
    table = store.table
    most, source = 0, None
    for batch in store.shelf.open.values():
        for row in batch.rows:
            theirs = keys_of(store, row)
            both = min(len(theirs), len(keys))
            same = theirs[:both] == keys[:both]
            shared = both if same.all() else int(same.argmin())
            if shared > most:
                most, source = shared, row
    if source is None:
        return Row(table.new_sequence())
    twin = Row(table.fork(source.sequence))
    table.truncate(twin.sequence, most * table.block_size)  # what goes was never announced to anyone
    twin.sealed = most
    return twin
