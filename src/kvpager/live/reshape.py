"""What generation does to rows between forward calls: reorder, repeat, crop, end. Sealed blocks are shared, never copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick
from kvpager.errors import CapacityError
from kvpager.live.rows import Row

if TYPE_CHECKING:
    from kvpager.live.store import TieredStore

__all__ = ["crop", "end", "fork", "open_blocks", "rearrange", "seal"]

_NONE = np.empty(0, np.int32)


def rearrange(store: TieredStore, rows: list[Row], parents: Sequence[int]) -> list[Row]:
    """Return rows that continue ``rows[parent]`` for each of `parents`; a row without a child ends.

    A child shares its parent's sealed blocks and owns a copy of its open one; the first child is the parent itself.

    Raises
    ------
    CapacityError, StorageFull
        As `fork` does. No row was touched.
    """
    ending = [row for number, row in enumerate(rows) if number not in set(parents)]
    again = [number for number, parent in enumerate(parents) if parent in parents[:number]]
    twins = iter(fork(store, [rows[parents[number]] for number in again], ending))
    return [next(twins) if number in again else rows[parent] for number, parent in enumerate(parents)]


def fork(store: TieredStore, rows: Sequence[Row], ending: Sequence[Row] = ()) -> list[Row]:
    """Return rows that go on from `rows` on their own: they share the full blocks, and copy the open one.

    Full blocks are sealed first, though no later call has confirmed them: copies of some among others that are shared would
    have ids that do not ascend. Cropping into one afterwards is what it is for any sealed block.

    The rows that are `ending` end before, and make room.

    Raises
    ------
    CapacityError
        If HBM cannot hold the open blocks of all. No row was touched.
    StorageFull
        If that is because the backing store has no room for backups.
    """
    table = store.table
    seal(store, _now(store), rows)
    old = np.concatenate([_NONE, *(row.bases[~table.sealed[row.bases]] for row in rows)])
    if len(old):
        _check_room(store, old, ending)
    end(store, ending)
    twins = [Row(table.fork(row.sequence), row.tokens, row.sealed, previous=dict(row.previous)) for row in rows]
    for twin in twins:
        twin.refresh(table)
    if len(old):
        units = open_blocks(store, np.concatenate([twin.bases[~table.sealed[twin.bases]] for twin in twins]))
        store.memory.fill(units, store.memory.content(table.whole(old)))
    return twins


def seal(store: TieredStore, tick: Tick, rows: Sequence[Row]) -> None:
    """Seal the full blocks of `rows`, and issue their backups."""
    table = store.table
    bases = np.concatenate([_NONE, *(row.bases[row.sealed : row.tokens // table.block_size] for row in rows)])
    bases = np.unique(bases[~table.sealed[bases]])
    if len(bases):
        units = table.whole(bases)
        table.seal(units)
        store.driver.seal(tick, units)
        store.summarise(bases)
    for row in rows:
        row.sealed = row.tokens // table.block_size


def crop(store: TieredStore, rows: list[Row], tokens: int) -> None:
    """Take the last `tokens` tokens from each row; a sealed block that is cut goes on as a new open one.

    A row with fewer real tokens ends up empty: what is left is its padding.

    Raises
    ------
    UnitsLost
        If a block that is cut has no good copy. No row was touched.
    """
    if tokens == 0:
        return
    size, table = store.table.block_size, store.table
    lefts = [max(row.tokens - tokens, 0) for row in rows]
    contents = [
        _content(store, row, left // size) if left % size and table.sealed[row.bases[left // size]] else None
        for row, left in zip(rows, lefts, strict=True)
    ]
    for row, left, content in zip(rows, lefts, contents, strict=True):
        cut = left // size
        store.release(_now(store), table.truncate(row.sequence, left))
        row.tokens, row.sealed = left, min(row.sealed, cut)
        row.previous = {layer: mask[:, : row.sealed] for layer, mask in row.previous.items()}
        row.refresh(table)
        if content is not None:
            store.memory.fill(open_blocks(store, row.bases[cut : cut + 1]), content)


def end(store: TieredStore, rows: Sequence[Row]) -> None:
    """End rows; blocks that nobody else holds are freed."""
    for row in rows:
        store.release(_now(store), store.table.free(row.sequence))


def _now(store: TieredStore) -> Tick:
    return Tick(store.step, store.layout.layers - 1)


def open_blocks(store: TieredStore, bases: Ids) -> Ids:
    """Open blocks in HBM, layer by layer as a forward call does; return all their units, ascending."""
    for layer in range(store.layout.layers):
        store.driver.append(Tick(store.step, layer), store.table.at_layer(bases, layer))
    return store.table.whole(bases)


def _check_room(store: TieredStore, copied: Ids, ending: Sequence[Row]) -> None:
    """Refuse to copy open blocks if HBM cannot hold the copies, even with all gone that may leave it or that ends."""
    table, pages, pools = store.table, store.pager.pages, store.pager.pools
    bases, times = np.unique(np.concatenate([_NONE, *(row.bases for row in ending)]), return_counts=True)
    stays = pages.held() & ~pages.evictable
    stays[table.whole(bases[table.refs[bases] == times])] = False
    over = pools.count(np.flatnonzero(stays).astype(np.int32)) + pools.count(table.whole(copied)) - pools.capacity
    if (over > 0).any():
        raise store.driver.full or CapacityError(
            f"a {pools.kind} pool of {int(pools.capacity.min())} units cannot hold copies of {len(copied)} open blocks: "
            f"give it at least {int(over.max())} units more, or plan for more rows"
        )


def _content(store: TieredStore, row: Row, block: int) -> NDArray[Any]:
    """Bytes of all units of one of a row's sealed blocks, wherever they are, [units, unit_bytes]."""
    units = store.table.whole(row.bases[block : block + 1])
    content = np.empty((len(units), store.layout.kv_bytes), np.uint8)

    def take(part: Ids) -> None:
        content[part - units[0]] = store.memory.content(part)

    store.counts.streamed(store.driver.stream(_now(store), units, take))
    return content
