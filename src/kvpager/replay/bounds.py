"""What no policy can exceed: the bounds printed beside every simulated ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, UnitTable
from kvpager.pool import Pools
from kvpager.replay.stream import Stream, units_being_written

__all__ = ["dense_bound", "interval_bound", "top_mass_oracle"]


def dense_bound(stream: Stream, units: int, warmup: int) -> float:
    """Block hit ratio of dense attention, which reads every complete block: the resident share, whatever the policy.

    Parameters
    ----------
    stream : Stream
        Gives blocks and layers.
    units : int
        Units that HBM holds.
    warmup : int
        Steps not counted.
    """
    recording, header = stream.recording, stream.recording.header
    per_block = len(header.layers) * stream.heads_per_layer
    hits = accesses = 0
    for step in range(warmup, recording.steps):
        turns = (header.context_tokens + step) % header.block_size == 0  # then the next block opens layer by layer
        complete = recording.open_block(step) * per_block
        hits += min(units - (0 if turns else per_block), complete)
        accesses += complete
    return hits / accesses


def top_mass_oracle(stream: Stream, units: int, pool: str, warmup: int) -> float:
    """Attention mass that the best resident set of each step would hold, with free moves and full foresight.

    Parameters
    ----------
    stream : Stream
        Gives the mass.
    units : int
        Units that HBM holds in all.
    pool : {"global", "layer", "equal"}
        Who shares them.
    warmup : int
        Steps not counted.
    """
    recording = stream.recording
    layers, heads = len(recording.header.layers), recording.header.num_kv_heads
    total = 0.0
    for step in range(warmup, recording.steps):
        mass = recording.mass[step].astype(np.float32)
        if stream.setting.granularity == "layer":
            mass = mass.sum(axis=1, keepdims=True)
        rows = mass.reshape({"global": 1, "layer": layers, "equal": layers * mass.shape[1]}[pool], -1)
        share = min(units // len(rows), rows.shape[1])
        total += float(np.partition(rows, rows.shape[1] - share, axis=1)[:, rows.shape[1] - share :].sum(dtype=np.float64))
    return total / ((recording.steps - warmup) * layers * heads)


def interval_bound(stream: Stream, units: int, pool: str, warmup: int, *, sink_tokens: int = 0, rounds: int = 100) -> float:
    """Upper bound of the *access* hit ratio when a unit may be asked for by several heads at once.

    Greedy Belady bounds unit hits only. Here each access is worth as many hits as heads ask for it:
    keeping a unit from one demand to its next is an interval of that worth, and at most `units`
    intervals (less what is forced) may overlap. Any prices per tick bound the best packing from above
    (Lagrangian relaxation); smoothed subgradient steps look for good prices.

    Parameters
    ----------
    stream : Stream
        Demand with the (step, layer) clock.
    units : int
        Units that HBM holds in all.
    pool : {"global", "layer", "equal"}
        Who shares them.
    warmup : int
        Steps not counted.
    sink_tokens : int
        Tokens pinned at the start, counted as hits wherever they fit.
    rounds : int
        Subgradient steps.

    Returns
    -------
    float
        In [0, 1]; valid for any number of rounds, tighter with more.
    """
    header = stream.recording.header
    table = UnitTable(
        len(header.layers), header.num_kv_heads, header.block_size, stream.recording.head_block_bytes, stream.setting.granularity
    )
    sequence = table.new_sequence()
    table.open_many(sequence, stream.recording.blocks)
    pools = Pools(table, pool, units)
    pools.grow()
    unit, begin, end, worth, pool_of = _intervals(stream, pools, warmup)
    accesses = sum(int(ask.asks.sum()) for ask in stream.asks if ask.tick.step >= warmup)
    room, base, pinned = _room(stream, table, pools, sink_tokens)
    is_pinned = pinned[unit]
    base_hits = float(worth[is_pinned].sum())
    begin, end, worth, pool_of = begin[~is_pinned], end[~is_pinned], worth[~is_pinned], pool_of[~is_pinned]
    bound = base_hits + _packing_bound(begin + pool_of * base, end + pool_of * base, worth, room, rounds)
    return min(1.0, bound / max(accesses, 1))


def _intervals(
    stream: Stream, pools: Pools, warmup: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.intp]]:
    """Each counted access with the slots for which its unit must have been held: [last demand, this one)."""
    serial = np.repeat(np.arange(1, len(stream.asks) + 1), [len(ask.units) for ask in stream.asks])
    units = np.concatenate([ask.units for ask in stream.asks])
    worth = np.concatenate([ask.asks * (ask.tick.step >= warmup) for ask in stream.asks]).astype(np.float64)
    order = np.lexsort((serial, units))
    units, serial, worth = units[order], serial[order], worth[order]
    begin = np.where(units == np.concatenate([[-1], units[:-1]]), np.concatenate([[0], serial[:-1]]), 0)
    born = _birth(stream, pools)[units]
    counted = worth > 0
    return units[counted], np.maximum(begin, born)[counted], serial[counted], worth[counted], pools.of(units[counted])


def _birth(stream: Stream, pools: Pools) -> NDArray[np.int64]:
    """Slot from which a unit competes for room.

    0 if the prefill wrote it, else the first placement in its pool after its backup was acknowledged,
    which is one tick after its block was sealed at a step's start.
    """
    recording = stream.recording
    header = recording.header
    layers = len(header.layers)
    per_step = 1 if stream.setting.clock == "step" else layers
    step = (np.arange(recording.blocks) + 1) * header.block_size - header.context_tokens
    acknowledged = (step * per_step + 2)[:, None].repeat(layers, axis=1)
    if pools.kind != "global" and per_step > 1:
        own = step[:, None] * per_step + np.arange(layers) + 1
        acknowledged = np.where(own >= acknowledged, own, own + per_step)
    return np.where(step[:, None] > 0, acknowledged, 0).repeat(stream.heads_per_layer, axis=1).ravel()


def _room(stream: Stream, table: UnitTable, pools: Pools, sink_tokens: int) -> tuple[NDArray[np.float64], int, NDArray[np.bool_]]:
    """Free units by (pool, slot), the number of slots, and which units the pins hold.

    Slot s is the state after tick s; slot 0 the state after the prefill. Open units are forced; in the
    first step they are left out, because a block that begins there opens layer by layer.
    """
    slots = len(stream.asks) + 1
    per_step = 1 if stream.setting.clock == "step" else table.num_layers
    open_units = table.units_per_block // len(pools.capacity)
    room = np.repeat(pools.capacity.astype(np.float64), slots).reshape(len(pools.capacity), slots)
    room[:, per_step + 1 :] -= open_units
    pinned = np.zeros(table.size, np.bool_)
    if sink_tokens:
        written = units_being_written(stream, pools.kind)
        every = table.of_layer(ALL_LAYERS)
        zone = every[table.first_token[every] < sink_tokens]
        for pool in range(len(pools.capacity)):
            mine = zone[pools.of(zone) == pool]
            fits = max(int(pools.capacity[pool]) - written, 0)
            if len(mine) > fits:  # at a block's turn the highest positions may be displaced; of one position, any unit
                mine = mine[table.first_token[mine] < table.first_token[mine[fits]]]
            pinned[mine] = True
            room[pool] -= len(mine)
    return np.maximum(room, 0).ravel(), slots, pinned


def _packing_bound(
    begin: NDArray[np.int64], end: NDArray[np.int64], worth: NDArray[np.float64], room: NDArray[np.float64], rounds: int
) -> float:
    """Best Lagrangian bound found for packing intervals of some worth into `room` per slot."""
    best = free = float(worth[end <= begin].sum())
    begin, end, worth = begin[end > begin], end[end > begin], worth[end > begin]
    if len(worth) == 0:
        return free
    best += float(worth.sum())

    def overlap(held: NDArray[np.bool_]) -> NDArray[np.int64]:
        edges = np.bincount(begin[held], minlength=len(room) + 1) - np.bincount(end[held], minlength=len(room) + 1)
        return np.cumsum(edges)[: len(room)]

    # start from one price for all slots that are in demand beyond their room: the best of a few
    crowded = (overlap(np.ones(len(worth), np.bool_)) > room).astype(np.float64)
    inside = np.concatenate([[0.0], np.cumsum(crowded)])
    length = inside[end] - inside[begin]
    guesses = np.quantile(worth / np.maximum(length, 1), np.linspace(0.05, 0.95, 19))
    start = min(guesses, key=lambda price: price * float(crowded @ room) + float(np.maximum(0, worth - price * length).sum()))
    prices = crowded * float(start)
    drift = np.zeros(len(room))
    for round in range(rounds):
        cumulative = np.concatenate([[0.0], np.cumsum(prices)])
        gain = worth - (cumulative[end] - cumulative[begin])
        held = gain > 0
        best = min(best, free + float(prices @ room) + float(gain[held].sum()))
        # smoothed relative spare room: prices fall where there is some, rise where there is none
        drift = 0.7 * drift + 0.3 * (room - overlap(held)) / np.maximum(room, 1)
        prices = np.maximum(0, prices - 0.3 * float(start) * drift / (1 + 6 * round / rounds))
    return best
