"""What a recording asks of the Pager, tick by tick: made once, replayed under many policies.

All selectors that replay accepts are residency-free, so the demand does not depend on the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, Ids, Seen, Tick
from kvpager.errors import BadInput
from kvpager.selectors.base import Selector, View, live_only
from kvpager.traces.recording import Recording

__all__ = ["Ask", "Setting", "Stream", "make_stream", "units_being_written"]


class Setting(NamedTuple):
    """How a recording is read; printed with every ratio."""

    granularity: str = "head"
    """``"head"`` or ``"layer"``: what has residency of its own."""
    clock: str = "layer"
    """``"layer"``: a batch per (step, layer). ``"step"``: all layers judged at the step's start; for comparison only."""
    observe: str = "read"
    """``"read"``: mass of read units only (law 11). ``"all"``: of every unit, not realisable live."""
    fold: str = "mean"
    """How the mass of a ``"layer"`` unit's KV heads becomes one number: ``"mean"`` or ``"max"``."""


class Ask(NamedTuple):
    """One tick of demand."""

    tick: Tick
    units: Ids
    """Unique, ascending."""
    asks: Ids
    """KV heads behind each unit."""
    unit_of_ask: Ids
    """For each (unit, head) that asks: position in `units`."""
    head_of_ask: Ids
    """For each: serial number of (layer, KV head)."""
    seen: Seen


@dataclass(frozen=True, eq=False)
class Stream:
    """Demand and observations of a whole recording; compared by identity.

    Attributes
    ----------
    recording : Recording
        Where it comes from.
    setting : Setting
        How it was read.
    selector : Selector
        Who asked.
    asks : list of Ask
        In time order.
    prefill : list of Seen
        One a layer, or one for all with the step clock: mean mass over the last prefill queries.
    read_mass : float
        Mean mass of what is read, open block included.
    """

    recording: Recording
    setting: Setting
    selector: Selector
    asks: list[Ask]
    prefill: list[Seen]
    read_mass: float

    @cached_property
    def mass(self) -> NDArray[np.float32]:
        """The recording's mass in float32, converted once, ``[steps, layer, kv_head, block]``."""
        return self.recording.mass.astype(np.float32)

    @property
    def heads_per_layer(self) -> int:
        """Units that a layer has in each block."""
        return self.recording.header.num_kv_heads if self.setting.granularity == "head" else 1

    @property
    def units(self) -> int:
        """Units that exist after the last step."""
        return self.recording.blocks * len(self.recording.header.layers) * self.heads_per_layer

    @property
    def unit_bytes(self) -> int:
        """Payload of a unit."""
        return self.recording.head_block_bytes * self.recording.header.num_kv_heads // self.heads_per_layer


def make_stream(recording: Recording, selector: Selector, setting: Setting | None = None) -> Stream:
    """Run `selector` over `recording`.

    Raises
    ------
    BadInput
        For an unknown setting, or a selector whose choice depends on residency or on what only a live run knows.
    """
    setting = setting or Setting()
    for name, value, known in (
        ("granularity", setting.granularity, ("head", "layer")),
        ("clock", setting.clock, ("layer", "step")),
        ("observe", setting.observe, ("read", "all")),
        ("fold", setting.fold, ("mean", "max")),
    ):
        if value not in known:
            raise BadInput(f"unknown {name} {value!r}: choose {' or '.join(known)}")
    if not selector.residency_free:
        raise BadInput(
            f"selector {selector!r} looks at residency, so its demand cannot be fixed beforehand: choose another for replay"
        )
    if lacks := live_only(selector):
        raise BadInput(f"selector {selector!r} {lacks}: use it in a live run, or choose key_bound or an oracle for replay")
    masks = _masks(recording, selector)
    layers = len(recording.header.layers)
    per_layer = [[_ask(recording, setting, Tick(t, i), masks[t][i]) for i in range(layers)] for t in range(recording.steps)]
    prefill = [_prefill(recording, setting, i) for i in range(layers)]
    if setting.clock == "step":
        asks = [_merge(row) for row in per_layer]
        prefill = [_merge_seen(Tick(-1, ALL_LAYERS), prefill)]
    else:
        asks = [ask for row in per_layer for ask in row]
    return Stream(recording, setting, selector, asks, prefill, _read_mass(recording, masks))


def units_being_written(stream: Stream, pool: str) -> int:
    """Most units of a pool that cannot leave: at a block's turn, the full ones until backed up, and the next as they open."""
    layers, heads = len(stream.recording.header.layers), stream.heads_per_layer
    block = {"global": layers * heads, "layer": heads, "equal": 1}[pool]
    return block + (heads if pool == "global" and stream.setting.clock == "layer" else block)


def _masks(recording: Recording, selector: Selector) -> list[list[NDArray[np.bool_]]]:
    """What is read at each step and layer, bool [kv_heads, complete blocks]."""
    header = recording.header
    previous = [np.zeros((header.num_kv_heads, 0), np.bool_)] * len(header.layers)
    masks = []
    for step in range(recording.steps):
        blocks = recording.open_block(step)
        mass = recording.mass[step, :, :, :blocks].astype(np.float32)
        bound = None if recording.bound is None else recording.bound[step, :, :, :blocks].astype(np.float32)
        cosine = None
        if recording.query_cosine is not None:
            cosine = (
                recording.query_cosine[step].astype(np.float32).reshape(len(header.layers), header.num_kv_heads, -1).mean(axis=2)
            )
        row = []
        for i in range(len(header.layers)):
            before = np.zeros((header.num_kv_heads, blocks), np.bool_)
            before[:, : previous[i].shape[1]] = previous[i]
            view = View(
                Tick(step, i),
                None if bound is None else bound[i],
                mass[i],
                np.zeros_like(before),
                before,
                None if cosine is None else cosine[i],
                block_size=header.block_size,
            )
            row.append(selector.select(view))
        masks.append(row)
        previous = row
    return masks


def _ids(recording: Recording, setting: Setting, layer: int, blocks: NDArray[np.intp], heads: NDArray[np.intp]) -> Ids:
    width = recording.header.num_kv_heads if setting.granularity == "head" else 1
    return ((blocks * len(recording.header.layers) + layer) * width + (heads if width > 1 else 0)).astype(np.int32)


def _ask(recording: Recording, setting: Setting, tick: Tick, mask: NDArray[np.bool_]) -> Ask:
    """Build one tick: ids ascend with (block, head)."""
    kv_heads = recording.header.num_kv_heads
    blocks, heads = np.nonzero(mask.T)
    units, unit_of_ask = np.unique(_ids(recording, setting, tick.layer, blocks, heads), return_inverse=True)
    mass = recording.mass[tick.step, tick.layer]
    open_block = recording.open_block(tick.step)
    read = np.ones((kv_heads, open_block + 1), np.bool_)
    if setting.observe == "read":
        read[:, :open_block] = mask
    seen = _seen(recording, setting, tick, np.where(read, mass[:, : open_block + 1], 0), read)
    asks = np.bincount(unit_of_ask, minlength=len(units)).astype(np.int32)
    return Ask(tick, units, asks, unit_of_ask.astype(np.int32), (tick.layer * kv_heads + heads).astype(np.int32), seen)


def _seen(recording: Recording, setting: Setting, tick: Tick, mass: NDArray[np.float16], read: NDArray[np.bool_]) -> Seen:
    """Mass of the read units; that of a ``"layer"`` unit is folded over its KV heads, unread ones counting 0."""
    if setting.granularity == "layer":
        whole = mass.astype(np.float32)
        mass = (whole.mean(axis=0) if setting.fold == "mean" else whole.max(axis=0))[None].astype(np.float16)
        read = np.any(read, axis=0, keepdims=True).reshape(1, -1)
    blocks, heads = np.nonzero(read.T)
    return Seen(tick, _ids(recording, setting, tick.layer, blocks, heads), mass[heads, blocks])


def _prefill(recording: Recording, setting: Setting, layer: int) -> Seen:
    """Mean mass over the last prefill queries, of every block that the prefill wrote to."""
    header = recording.header
    blocks = -(-header.context_tokens // header.block_size)
    mass = recording.prefill_mass[:, layer, :, :blocks].astype(np.float32).mean(axis=0).astype(np.float16)
    return _seen(recording, setting, Tick(-1, layer), mass, np.ones(mass.shape, np.bool_))


def _merge_seen(tick: Tick, parts: list[Seen]) -> Seen:
    units = np.concatenate([part.units for part in parts])
    order = np.argsort(units, kind="stable")
    return Seen(tick, units[order], np.concatenate([part.mass for part in parts])[order])


def _merge(row: list[Ask]) -> Ask:
    """Join a step's layers into one tick."""
    tick = Tick(row[0].tick.step, ALL_LAYERS)
    units = np.concatenate([ask.units for ask in row])
    order = np.argsort(units, kind="stable")
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    offsets = np.cumsum([0, *[len(ask.units) for ask in row[:-1]]])
    return Ask(
        tick,
        units[order],
        np.concatenate([ask.asks for ask in row])[order],
        rank[np.concatenate([ask.unit_of_ask + at for ask, at in zip(row, offsets, strict=True)])],
        np.concatenate([ask.head_of_ask for ask in row]),
        _merge_seen(tick, [ask.seen for ask in row]),
    )


def _read_mass(recording: Recording, masks: list[list[NDArray[np.bool_]]]) -> float:
    total = 0.0
    for step, row in enumerate(masks):
        blocks = recording.open_block(step)
        mass = recording.mass[step, :, :, : blocks + 1].astype(np.float32)
        total += float((mass[:, :, :blocks] * np.stack(row)).sum() + mass[:, :, blocks].sum())
    return total / (recording.steps * len(recording.header.layers) * recording.header.num_kv_heads)
