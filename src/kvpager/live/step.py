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

__all__ = ["Item", "Kernel", "LayerStep", "make_item"]


class Kernel(Protocol):
    """Decode attention over units in slots; see `kvpager.live.kernels`."""

    def partials(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, heads: Ids, rows: Ids, out: Partials,
        tokens: Ids | None = None, softcap: float = 0.0,
    ) -> None:  # fmt: skip
        """Attend to single units, in any order."""
        ...

    def fold(self, partials: Partials, rows: Ids, starts: Ids) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Fold partials by KV head, in the order given; return output and each row's mass."""
        ...

    def attend(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, starts: Ids, tokens: Ids | None = None,
        softcap: float = 0.0,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
        """Do both at once, for units that are all at hand."""
        ...


class Item(NamedTuple):
    """What one query reads in a layer, KV head by KV head, blocks ascending, open blocks last."""

    row: int
    query: NDArray[np.float32]
    """Scaled, [kv_heads * group, k_dim]."""
    units: Ids
    starts: Ids
    """Where each KV head begins in `units`."""
    tokens: Ids
    """Tokens that each unit holds for this query."""
    asked: NDArray[np.bool_]
    """Which units are asked for: complete ones. Open ones are in HBM anyway."""


def make_item(
    table: UnitTable, layer: int, row: int, query: NDArray[np.float32], bases: Ids, mask: NDArray[np.bool_], context: int
) -> Item:
    """Return what a query reads.

    Parameters
    ----------
    table : UnitTable
        Units.
    layer, row : int
        Which layer, and which row of the batch.
    query : float32 [kv_heads * group, k_dim]
        Scaled.
    bases : int32 [blocks]
        First unit of each of the row's blocks.
    mask : bool [kv_heads, complete blocks]
        The complete blocks to read; the open ones after them are always read.
    context : int
        Tokens that the query may read, its own included.
    """
    heads, complete = mask.shape
    last = -(-context // table.block_size)
    wide = np.ones((heads, last), np.bool_)
    wide[:, :complete] = mask
    head, block = np.nonzero(wide)
    units = (bases[block] + (layer * heads + head)).astype(np.int32)
    starts = np.zeros(heads + 1, np.int32)
    np.cumsum(wide.sum(1), out=starts[1:])
    tokens = np.minimum(context - block * table.block_size, table.block_size).astype(np.int32)
    return Item(row, query, units, starts, tokens, block < complete)


class LayerStep:
    """The attention of some queries in one layer, while their units come and go.

    Parameters
    ----------
    kernel : Kernel
        Computes.
    source : callable
        Tells in which memory units stand, K and V together, and in which of its slots.
    table : UnitTable
        Units.
    v_dim : int
        Elements of a value.
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
        source: Callable[[Ids], tuple[NDArray[np.uint8], Ids]],
        table: UnitTable,
        v_dim: int,
        items: list[Item],
        softcap: float = 0.0,
    ) -> None:
        self._kernel, self._source, self._table, self._v_dim = kernel, source, table, v_dim
        self._items, self._softcap = items, softcap
        self._orders: list[tuple[NDArray[np.intp], Ids]] = []
        self._partials: list[Partials | None] = [None] * len(items)
        self.outputs: list[NDArray[np.float32]] = []
        self._masses: list[NDArray[np.float32]] = []
        asked = [item.units[item.asked] for item in items]
        rows = {item.row: units for item, units in zip(items, asked, strict=True)}
        if len(rows) == 1:
            self.demand = np.sort(asked[0])
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
            order, ascending = self._order(number)
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
            self._attend_to(number, item, np.flatnonzero(~item.asked))
            partials = self._partials[number]
            rows = np.arange(len(item.units), dtype=np.int32)
            output, mass = self._kernel.fold(partials, rows, item.starts)  # type: ignore[arg-type]
            self.outputs.append(output)
            self._masses.append(mass)
            self._partials[number] = None

    def mass(self) -> tuple[Ids, NDArray[np.float16]]:
        """Return the units read, ascending, and the mass of each: mean over the queries that read it."""
        if len(self._items) == 1:
            order = np.argsort(self._items[0].units)
            return self._items[0].units[order], self._masses[0][order].astype(np.float16)
        units, where, counts = np.unique(
            np.concatenate([item.units for item in self._items]), return_inverse=True, return_counts=True
        )
        total = np.bincount(where, weights=np.concatenate(self._masses))
        return units, (total / counts).astype(np.float16)

    def _order(self, number: int) -> tuple[NDArray[np.intp], Ids]:
        while len(self._orders) <= number:
            units = self._items[len(self._orders)].units
            order = np.argsort(units)
            self._orders.append((order, units[order]))
        return self._orders[number]

    def _attend_to(self, number: int, item: Item, places: NDArray[np.intp]) -> None:
        if len(places) == 0:
            return
        out = self._partials[number]
        if out is None:
            group = len(item.query) // (len(item.starts) - 1)
            out = self._partials[number] = Partials.empty(len(item.units), group, self._v_dim)
        units = item.units[places]
        memory, slots = self._source(units)
        self._kernel.partials(
            item.query, memory, slots, self._table.kv_head[units], places.astype(np.int32), out, item.tokens[places],
            self._softcap,
        )  # fmt: skip

    def _finish_at_once(self) -> None:
        for item in self._items:
            memory, slots = self._source(item.units)
            output, mass = self._kernel.attend(item.query, memory, slots, item.starts, item.tokens, self._softcap)
            self.outputs.append(output)
            self._masses.append(mass)
