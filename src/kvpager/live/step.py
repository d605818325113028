"""One layer's attention of a few queries over one demand: what is at hand is attended as it comes, folded in order.

A decode step is one query a row; a step that checks drafted tokens is a few, which all read the same complete blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, UnitTable
from kvpager.live.kernels.partials import Partials

__all__ = ["Item", "Kernel", "LayerStep", "Reading", "read_all", "read_some"]


class Kernel(Protocol):
    """Decode attention over units in slots; see `kvpager.live.kernels`."""

    def room(self, rows: int) -> Partials:
        """Return room for the partials of so many units, where the kernel keeps them."""
        ...

    def partials(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, heads: Ids, rows: Ids, out: Partials,
        tokens: Ids | None = None, softcap: float = 0.0, keys: Ids | None = None,
    ) -> None:  # fmt: skip
        """Attend to single units, in any order."""
        ...

    def fold(self, partials: Partials, rows: Ids, starts: Ids) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Fold partials by KV head, in the order given; return output and each row's mass."""
        ...

    def attend(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, starts: Ids, tokens: Ids | None = None,
        softcap: float = 0.0, keys: Ids | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
        """Do both at once, for units that are all at hand."""
        ...

    def key_mass(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, starts: Ids, softcap: float = 0.0
    ) -> NDArray[np.float32]:
        """Return the mass of full blocks from their keys alone."""
        ...


class Reading(NamedTuple):
    """What one query reads, KV head by KV head, blocks ascending, open blocks last."""

    units: Ids
    starts: Ids
    """Where each KV head begins in `units`."""
    tokens: Ids
    """Tokens that each unit holds for this query."""
    order: NDArray[np.intp]
    """Positions in `units` by ascending unit: those of complete blocks, then those of open ones."""
    demand: Ids
    """The units of complete blocks, ascending: they are asked for. Open ones are in HBM anyway."""

    def at_layer(self, layer: int) -> Reading:
        """The same blocks in another layer, if this is layer 0."""
        ahead = np.int32(layer * (len(self.starts) - 1))
        return self._replace(units=self.units + ahead, demand=self.demand + ahead)


class Item(NamedTuple):
    """A query, and what it reads in a layer."""

    row: int
    query: NDArray[np.float32]
    """Scaled, [kv_heads * group, k_dim]."""
    reading: Reading


def read_all(table: UnitTable, bases: Ids, complete: int, context: int) -> Reading:
    """Return what a query reads in layer 0 that reads everything.

    Parameters
    ----------
    table : UnitTable
        Units.
    bases : int32 [blocks]
        First unit of each of the row's blocks.
    complete : int
        Blocks that are asked for; the open ones after them are read anyway.
    context : int
        Tokens that the query may read, its own included.
    """
    heads, last = table.num_kv_heads, -(-context // table.block_size)
    units = (bases[:last] + np.arange(heads, dtype=np.int32)[:, None]).ravel()
    tokens = np.full((heads, last), table.block_size, np.int32)
    tokens[:, last - 1] = context - (last - 1) * table.block_size
    order = np.arange(heads * last).reshape(heads, last).T.ravel()
    starts = np.arange(0, heads * last + 1, last, dtype=np.int32)
    return Reading(units, starts, tokens.ravel(), order, table.at_layer(bases[:complete], 0))


def read_some(table: UnitTable, bases: Ids, mask: NDArray[np.bool_], context: int) -> Reading:
    """Return what a query reads in layer 0 that reads some of the complete blocks, and the open ones.

    Parameters
    ----------
    table : UnitTable
        Units.
    bases : int32 [blocks]
        First unit of each of the row's blocks.
    mask : bool [kv_heads, complete blocks]
        The complete blocks to read.
    context : int
        Tokens that the query may read, its own included.
    """
    heads, complete = mask.shape
    last = -(-context // table.block_size)
    wide = np.ones((heads, last), np.bool_)
    wide[:, :complete] = mask
    place = np.flatnonzero(wide)
    head = place // last
    block = place - head * last
    units = bases[block] + head.astype(np.int32)
    starts = np.searchsorted(place, np.arange(0, heads * last + 1, last)).astype(np.int32)
    tokens = np.minimum(context - block * table.block_size, table.block_size).astype(np.int32)
    order = np.argsort(block.astype(np.uint16) if last <= 1 << 16 else block, kind="stable")  # of 16 bits: no comparisons
    return Reading(units, starts, tokens, order, units[order[: len(order) - heads * (last - complete)]])


class LayerStep:
    """The attention of some queries in one layer, while their units come and go.

    Parameters
    ----------
    kernel : Kernel
        Computes.
    source : callable
        Tells in which memory units stand, in which of its slots, and in which their keys, if K and V are apart.
    table : UnitTable
        Units.
    items : list of Item
        The queries.
    softcap : float
        Of the logits; 0 = none.

    Attributes
    ----------
    demand, asks : int32 [n]
        Units asked for, unique and ascending, and how many (row, KV head) pairs stand behind each.
    outputs : list of float32 [kv_heads * group, v_dim]
        One an item, after `finish`.
    """

    def __init__(
        self,
        kernel: Kernel,
        source: Callable[[Ids], tuple[NDArray[np.uint8], Ids, Ids | None]],
        table: UnitTable,
        items: list[Item],
        softcap: float = 0.0,
    ) -> None:
        self._kernel, self._source, self._table = kernel, source, table
        self._items, self._softcap = items, softcap
        self._ascending: dict[int, Ids] = {}
        self._partials: list[Partials | None] = [None] * len(items)
        self.outputs: list[NDArray[np.float32]] = []
        self._masses: list[NDArray[np.float32]] = []
        rows = {item.row: item.reading.demand for item in items}
        if len(rows) == 1:
            self.demand = items[0].reading.demand
            self.asks = np.ones(len(self.demand), np.int32)
        else:
            self.demand, counts = np.unique(np.concatenate(list(rows.values())), return_counts=True)
            self.asks = counts.astype(np.int32)

    def attend(self, units: Ids) -> None:
        """Attend to `units`, which are at hand now."""
        if len(units) == len(self.demand):  # all at once: nothing has to be kept
            self._finish_at_once()
            return
        for number, item in enumerate(self._items):
            order, ascending = item.reading.order, self._ascending.get(number)
            if ascending is None:
                ascending = self._ascending[number] = item.reading.units[order]
            at = np.minimum(np.searchsorted(ascending, units), len(ascending) - 1)
            mine = ascending[at] == units
            self._attend_to(number, item, order[at[mine]])

    def finish(self) -> None:
        """Attend to the open blocks and fold, unless that is done."""
        if self.outputs:
            return
        if len(self.demand) == 0:
            self._finish_at_once()
            return
        for number, item in enumerate(self._items):
            reading = item.reading
            self._attend_to(number, item, reading.order[len(reading.demand) :])
            partials = self._partials[number]
            rows = np.arange(len(reading.units), dtype=np.int32)
            output, mass = self._kernel.fold(partials, rows, reading.starts)  # type: ignore[arg-type]
            self.outputs.append(output)
            self._masses.append(mass)
            self._partials[number] = None

    def mass(self) -> tuple[Ids, NDArray[np.float16]]:
        """Return the units read, ascending, and the mass of each: mean over the queries that read it."""
        if len(self._items) == 1:
            reading = self._items[0].reading
            return reading.units[reading.order], self._masses[0].astype(np.float16)[reading.order]
        units, where, counts = np.unique(
            np.concatenate([item.reading.units for item in self._items]), return_inverse=True, return_counts=True
        )
        total = np.bincount(where, weights=np.concatenate(self._masses))
        return units, (total / counts).astype(np.float16)

    def _attend_to(self, number: int, item: Item, places: NDArray[np.intp]) -> None:
        if len(places) == 0:
            return
        out, reading = self._partials[number], item.reading
        if out is None:
            out = self._partials[number] = self._kernel.room(len(reading.units))
        units = reading.units[places]
        memory, slots, keys = self._source(units)
        self._kernel.partials(
            item.query, memory, slots, self._table.kv_head[units], places.astype(np.int32), out, reading.tokens[places],
            self._softcap, keys,
        )  # fmt: skip

    def _finish_at_once(self) -> None:
        for item in self._items:
            units, starts, tokens = item.reading[:3]
            memory, slots, keys = self._source(units)
            output, mass = self._kernel.attend(item.query, memory, slots, starts, tokens, self._softcap, keys)
            self.outputs.append(output)
            self._masses.append(mass)
