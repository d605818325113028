"""The forward calls of one batch over a tiered store: layer by layer, write, select, read, attend, observe, place.

No knowledge of transformers in here: `kvpager.live.transformers` hands over queries, keys and values, and takes outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvpager.core import Demand, Ids, Seen, Tick
from kvpager.errors import BlockLostError, InvariantError, UnitsLost
from kvpager.live.reshape import seal
from kvpager.live.rows import Row, places
from kvpager.live.step import Item, LayerStep, Reading, read_all, read_some
from kvpager.live.stream import GROUP_BLOCKS, ManyQueries
from kvpager.selectors.base import ByKeys, Selector

if TYPE_CHECKING:
    from kvpager.live.store import TieredStore

__all__ = ["FEW_TOKENS", "Batch"]

FEW_TOKENS = 32
"""A call of at most so many tokens a row is a step: each token is a query of its own over one demand. A longer one is a
prefill: it streams the past, and its complete blocks are sealed at once."""


class _Call(NamedTuple):
    """A forward call under way."""

    step: int
    before: int
    """Rows that there were."""
    new: list[int]
    """Real tokens that each row gets."""
    opened: list[slice]
    """Of each row's blocks, those that this call opened."""
    admitted: list[slice]
    """Of each row's blocks, those that this call completes and seals at once."""
    dense: dict[tuple[int, int], Reading]
    """What a query of a row and context reads in layer 0 if it reads everything: other layers read the same blocks."""


class Batch:
    """Rows that go through a model together.

    Parameters
    ----------
    store : TieredStore
        Where their blocks are.
    selector : Selector, optional
        Chooses what a step of one token reads; None reads everything: exact attention.
    name : str
        For errors: the session.

    Attributes
    ----------
    measure_every : int
        Every so many steps a selective step reads everything else too, to know the mass of what it read; 0 = never.
    """

    def __init__(self, store: TieredStore, selector: Selector | None = None, name: str = "") -> None:
        self.store, self.selector, self.name = store, selector, name
        self.measure_every = 0
        self.rows: list[Row] = []
        self._call: _Call | None = None

    # ── a forward call ───────────────────────────────────────────────────────────────────────────

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, new: Sequence[int], *, scaling: float, softcap: float = 0.0,
        finish: bool = True,
    ) -> Tensor:  # fmt: skip
        """Take a layer's new keys and values, and attend to all tokens so far.

        Parameters
        ----------
        layer : int
            Number among the tiered layers; a forward call goes through all of them in order.
        query : Tensor [rows, kv_heads * group, tokens, k_dim]
            Queries of the call's tokens.
        key, value : Tensor [rows, kv_heads, tokens, dim]
            Their keys and values.
        new : sequence of int
            How many of the tokens are real, by row: the last ones.
        scaling, softcap : float
            Of the logits.
        finish : bool
            Whether the call is complete after the last layer; otherwise `finish` completes it.

        Returns
        -------
        Tensor [rows, kv_heads * group, tokens, v_dim]
            0 for padding.

        Raises
        ------
        BlockLostError
            If a block has no good copy. The cache stays at the last complete call.
        CapacityError, StorageFull
            If HBM, or HBM and disk, cannot hold what must be held.
        """
        try:
            output = self._attend(layer, query, key, value, list(new), scaling, softcap)
        except UnitsLost as lost:
            self.rollback()
            raise self.lost(lost) from lost
        except BaseException:
            self.rollback()
            raise
        if finish and layer == self.store.layout.layers - 1:
            self.finish()
        return output

    def finish(self) -> None:
        """Complete the call: what it brought is part of the rows."""
        call, self._call = self._current(), None
        for row, count in zip(self.rows, call.new, strict=True):
            row.tokens += count

    def _attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, new: list[int], scaling: float, softcap: float
    ) -> Tensor:
        store = self.store
        if layer == 0:
            self.rollback()
            call = self._call = self._begin(new, len(query))
        elif self._call is None:
            raise InvariantError(f"layer {layer} follows no layer 0: run the whole model over one cache")
        else:
            call = self._call
            store.driver.begin(Tick(call.step, layer))
        tick = Tick(call.step, layer)
        opened = [
            row.units(store.table, layer, part)
            for row, part in zip(self.rows, call.opened, strict=True)
            if part.start < part.stop
        ]
        if opened:
            store.driver.append(tick, np.concatenate(opened))
        self._write(layer, key, value)
        scaled = query.float() * scaling
        if max(new) > FEW_TOKENS:
            output = self._prefill(tick, scaled, key.float(), value.float(), softcap)
        else:
            output = torch.from_numpy(self._step(tick, scaled.cpu().numpy(), softcap)).to(query.device)
        store.driver.prefetch(tick)
        return output

    def _begin(self, new: list[int], rows: int) -> _Call:
        """Start a call: seal what the last one completed, open what this one writes to."""
        store, table = self.store, self.store.table
        size, before = table.block_size, len(self.rows)
        while len(self.rows) < rows:
            self.rows.append(Row(table.new_sequence()))
        if len(self.rows) != rows:
            raise InvariantError(f"a call of {rows} rows over a cache of {len(self.rows)}: select or repeat its rows first")
        tick = Tick(store.next_step(), 0)
        store.driver.begin(tick)
        self.seal(tick)
        opened, admitted = [], []
        for row, count in zip(self.rows, new, strict=True):
            first, last = len(row.bases), -(-(row.tokens + count) // size)
            whole = max((row.tokens + count) // size, first) if max(new) > FEW_TOKENS else first
            if whole > first:
                table.seal(table.open_many(row.sequence, whole - first))
            table.open_many(row.sequence, last - whole)
            if last > first:
                row.refresh(table)
            admitted.append(slice(first, whole))
            opened.append(slice(whole, last))
        return _Call(tick.step, before, new, opened, admitted, {})

    def seal(self, tick: Tick) -> None:
        """Seal the rows' full blocks, and issue their backups."""
        seal(self.store, tick, self.rows)

    # ── a step ───────────────────────────────────────────────────────────────────────────────────

    def _step(self, tick: Tick, query: NDArray[np.float32], softcap: float) -> NDArray[np.float32]:
        """Attend with a few queries a row, each over the blocks that the selector chose."""
        store, call = self.store, self._current()
        output = np.zeros((*query.shape[:3], store.layout.v_dim), np.float32)
        items: list[Item] = []
        places: list[tuple[int, int]] = []
        alone = max(call.new) == 1
        for number, (row, count) in enumerate(zip(self.rows, call.new, strict=True)):
            for position in range(query.shape[2] - count, query.shape[2]):
                own = np.ascontiguousarray(query[number, :, position])
                mask = self._choose(tick, row, own, softcap) if alone else None
                context = row.tokens + position - (query.shape[2] - count) + 1
                items.append(Item(number, own, self._reading(number, mask, context).at_layer(tick.layer)))
                places.append((number, position))
        if not items:
            return output
        step = LayerStep(store.kernel, store.memory.source, store.table, items, softcap)

        def seen() -> Seen:
            step.finish()
            return store.saw(Seen(tick, *step.mass()))

        grant = store.driver.ask(Demand(tick, step.demand, step.asks), step.attend, seen)
        store.counts.asked(grant, step.asks)
        for (number, position), found in zip(places, step.outputs, strict=True):
            output[number, :, position] = found
        if self.measure_every and alone and self.selector is not None and tick.step % self.measure_every == 0:
            for item in items:
                self._probe(tick, item, softcap)
        return output

    def _reading(self, number: int, mask: NDArray[np.bool_] | None, context: int) -> Reading:
        """What a query of a row reads, in layer 0; without a mask everything."""
        row, table, dense = self.rows[number], self.store.table, self._current().dense
        if mask is not None:
            return read_some(table, row.bases, mask, context)
        known = dense.get((number, context))
        if known is None:
            known = dense[number, context] = read_all(table, row.bases, row.sealed, context)
        return known

    def _probe(self, tick: Tick, item: Item, softcap: float) -> None:
        """Read all that `item` left out as well, to know the share of the attention mass on what it read."""
        store, row = self.store, self.rows[item.row]
        whole = item._replace(reading=self._reading(item.row, None, row.tokens + 1).at_layer(tick.layer))
        step = LayerStep(store.kernel, store.memory.source, store.table, [whole], softcap)
        store.driver.stream(tick, step.demand, step.attend)
        step.finish()
        units, mass = step.mass()
        store.counts.mass_read += float(mass[np.isin(units, item.reading.units)].sum(dtype=np.float64)) / store.layout.kv_heads
        store.counts.mass_probes += 1

    def _choose(self, tick: Tick, row: Row, query: NDArray[np.float32], softcap: float) -> NDArray[np.bool_] | None:
        """Which complete blocks a query reads, bool [kv_heads, blocks]; None = all."""
        store, heads = self.store, self.store.layout.kv_heads
        if self.selector is None or row.sealed == 0:
            return None
        previous = np.zeros((heads, row.sealed), np.bool_)
        before = row.previous.get(tick.layer)
        if before is not None:
            previous[:, : before.shape[1]] = before
        bases = row.bases[: row.sealed]
        view = store.view(tick, self.selector, query.reshape(heads, -1, query.shape[1]), bases, previous)
        if isinstance(self.selector, ByKeys) and self.selector.rerank:
            view = view._replace(bound=store.exact_scores(view, self.selector.candidates(view), query, bases, softcap))
        mask = self.selector.select(view)
        row.previous[tick.layer] = mask
        return mask

    # ── a prefill ────────────────────────────────────────────────────────────────────────────────

    def _prefill(self, tick: Tick, query: Tensor, key: Tensor, value: Tensor, softcap: float) -> Tensor:
        """Attend with many queries: the past streamed from its tiers, the call's own tokens as they are."""
        store, call = self.store, self._current()
        output = torch.zeros(*query.shape[:3], store.layout.v_dim, device=query.device)
        units: list[Ids] = []
        masses: list[NDArray[np.float32]] = []
        for number, (row, count) in enumerate(zip(self.rows, call.new, strict=True)):
            if count == 0:
                continue
            own = query[number, :, -count:].contiguous()
            many = ManyQueries(own, store.layout.kv_heads, store.layout.v_dim, store.table.block_size, softcap)
            self._past(tick, row, many)
            many.own(*self._own(tick.layer, row, key[number, :, -count:], value[number, :, -count:]))
            output[number, :, -count:] = many.output()
            units.append(row.units(store.table, tick.layer))
            masses.append(many.mass().cpu().numpy().T.ravel())
        seen = store.saw(_mean_mass(tick, units, masses))
        fresh = [row.units(store.table, tick.layer, part) for row, part in zip(self.rows, call.admitted, strict=True)]
        store.driver.admit(tick, np.concatenate(fresh), self._writer(tick.layer, key, value), seen)
        return output

    def _past(self, tick: Tick, row: Row, many: ManyQueries) -> None:
        """Stream a row's complete blocks through `many`, group by group."""
        store, layout = self.store, self.store.layout
        for first in range(0, row.sealed, GROUP_BLOCKS):
            part = slice(first, min(first + GROUP_BLOCKS, row.sealed))
            bases, blocks = row.bases[part], part.stop - part.start
            keys = torch.empty(layout.kv_heads, layout.k_dim, blocks, layout.block_size, device=store.keys.device)
            values = torch.empty(layout.kv_heads, blocks, layout.block_size, layout.v_dim, device=store.keys.device)

            def gather(units: Ids, bases: Ids = bases, keys: Tensor = keys, values: Tensor = values) -> None:
                block, head = places(store.table, bases, units)
                keys[head, :, block] = store.keys[store.key_index(units)].float()
                values[head, block] = store.values[store.index(units)].float()

            grant = store.driver.stream(tick, row.units(store.table, tick.layer, part), gather)
            store.counts.streamed(grant)
            many.past(keys.flatten(2), values.flatten(1, 2))

    def _own(self, layer: int, row: Row, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [kv_heads, k_dim, tokens] and values of the open block before the call, and of the call."""
        store = self.store
        before = row.tokens - row.sealed * store.table.block_size
        keys, values = key.mT, value
        if before:
            units = row.units(store.table, layer, slice(row.sealed, row.sealed + 1))
            keys = torch.cat([store.keys[store.key_index(units)][..., :before].float(), keys], -1)
            values = torch.cat([store.values[store.index(units)][:, :before].float(), values], 1)
        return keys.contiguous(), values.contiguous()

    def _writer(self, layer: int, key: Tensor, value: Tensor) -> Any:
        """Return what writes the admitted blocks of a layer into their slots."""
        store, call, size = self.store, self._current(), self.store.table.block_size
        bases, keys, values = [], [], []
        for number, (row, count, part) in enumerate(zip(self.rows, call.new, call.admitted, strict=True)):
            blocks = part.stop - part.start
            if blocks:
                first = key.shape[2] - count + part.start * size - row.tokens
                span = slice(first, first + blocks * size)
                bases.append(row.bases[part])
                keys.append(key[number, :, span].reshape(key.shape[1], blocks, size, -1).permute(1, 0, 3, 2))
                values.append(value[number, :, span].reshape(value.shape[1], blocks, size, -1).transpose(0, 1))
        if not bases:
            return None
        base, all_keys, all_values = np.concatenate(bases), torch.cat(keys), torch.cat(values)
        if store.summary is not None:
            store.summary.put(layer, base // store.table.units_per_block, all_keys.mT.contiguous().cpu().numpy())

        def write(units: Ids) -> None:
            block, head = places(store.table, base, units)
            store.keys.index_copy_(0, store.key_index(units), all_keys[block, head].to(store.keys.dtype))
            store.values.index_copy_(0, store.index(units), all_values[block, head].to(store.values.dtype))

        return write

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write the rows' new tokens to their open blocks; those of admitted blocks are written as they are admitted.

        `keys` and `values` are ``[rows, kv_heads, tokens, dim]``, of which each row's last are real.
        """
        store, call, size = self.store, self._current(), self.store.table.block_size
        for number, (row, count, admitted) in enumerate(zip(self.rows, call.new, call.admitted, strict=True)):
            first, stop, padding = row.tokens, row.tokens + count, keys.shape[2] - count
            for block in range(first // size, -(-stop // size)):
                if admitted.start <= block < admitted.stop:
                    continue
                begin, end = max(block * size, first), min((block + 1) * size, stop)
                units = row.units(store.table, layer, slice(block, block + 1))
                inside = slice(begin - block * size, end - block * size)
                source = slice(padding + begin - first, padding + end - first)
                new_keys, new_values = keys[number, :, source].mT, values[number, :, source]
                store.keys[:, :, inside].index_copy_(0, store.key_index(units), new_keys.to(store.keys.dtype))
                store.values[:, inside].index_copy_(0, store.index(units), new_values.to(store.values.dtype))

    def _current(self) -> _Call:
        if self._call is None:
            raise InvariantError("no forward call is under way")
        return self._call

    def rollback(self) -> None:
        """Return to the last complete forward call, if one was broken off."""
        if self._call is None:
            return
        call, self._call = self._call, None
        store, tick = self.store, Tick(call.step, 0)
        store.driver.recover()
        for row in self.rows:
            store.release(tick, store.table.truncate(row.sequence, row.tokens))
            row.refresh(store.table)
        for row in self.rows[call.before :]:
            store.table.free(row.sequence)
        del self.rows[call.before :]

    def lost(self, error: UnitsLost) -> BlockLostError:
        """Say which block of the session `error` is about."""
        unit, table = int(error.units[0]), self.store.table
        layer = self.store.layer_numbers[int(table.layer[unit])]
        return BlockLostError(self.name, layer, int(table.first_token[unit]) // table.block_size, error.tier)


def _mean_mass(tick: Tick, units: list[Ids], masses: list[NDArray[np.float32]]) -> Seen:
    """Mass of each unit, mean over the rows that hold it."""
    if len(units) == 1:
        return Seen(tick, units[0], masses[0].astype(np.float16))
    unique, where, counts = np.unique(np.concatenate(units), return_inverse=True, return_counts=True)
    return Seen(tick, unique, (np.bincount(where, weights=np.concatenate(masses)) / counts).astype(np.float16))
