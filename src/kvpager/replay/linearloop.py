"""The compiled loop of `kvpager.replay.linear`: who asks, who hits, and who stays.

A unit's key changes only where its layer is served, and with the step; it is kept between. Of a tick's pool few leave, so only
units about as low as those that left last are compared.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["loop"]

_OPEN, _LEAVES, _OUT = 1, 2, 3  # places of a unit: cannot leave HBM yet, evictable, in a lower tier
_SPARE = 32  # units looked at beyond twice those that leave


@numba.njit(inline="always")
def _hash(unit: Any, salt: Any) -> Any:
    """Order of ties: `kvpager.pool.tie_hash`."""
    x = np.uint64(unit) + salt
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit
def _smallest(values: Any, n: Any, k: Any) -> Any:
    """Return the k-th smallest (from 0) of the first `n` values, which it reorders: Hoare's selection."""
    low, high = 0, n - 1
    while low < high:
        middle = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < middle:
                i += 1
            while middle < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            return middle
    return values[k]


@numba.njit(inline="always")
def _key(unit: Any, step: Any, score: Any) -> Any:
    recency, last, scaled, sink, rule = score
    found = rule[0] * recency[step - last[unit]] + rule[1] * scaled[unit] + rule[2] * sink[unit]
    return -np.inf if found < rule[3] else found


@numba.njit
def _low(pool: Any, n: Any, limit: Any, keys: Any, low: Any) -> Any:
    """List the places of units whose key is at most `limit`; return how many there are."""
    found = 0
    for i in range(n):
        low[found] = i
        found += keys[pool[i]] <= limit
    return found


@numba.njit
def _cut(pool: Any, found: Any, leave: Any, salt: Any, keys: Any, limit: Any, work: Any) -> Any:
    """Key and hash of the best of the `leave` worst of the listed units; set the `limit` for the next time."""
    low, copy, order = work
    for i in range(found):
        copy[i] = keys[pool[low[i]]]
    some = min(found, 2 * leave + _SPARE)
    limit[0] = _smallest(copy, found, some - 1)
    cut = _smallest(copy, some, leave - 1)
    tied = 0
    for i in range(found):
        unit = pool[low[i]]
        leave -= keys[unit] < cut
        if keys[unit] == cut:
            order[tied] = _hash(unit, salt)
            tied += 1
    return cut, _smallest(order, tied, tied - leave)


@numba.njit
def _choose(pool: Any, held: Any, more: Any, room: Any, salt: Any, keys: Any, limit: Any, place: Any, work: Any) -> Any:
    """Keep the `room` best of the pool, ties by hash, ``-inf`` never: `kvpager.pool.best`.

    The pool is `held` evictable units, then `more` staged ones; return (evictable now, kept).
    """
    n, low = held + more, work[0]
    leave, cut, last = n - room, -np.inf, np.uint64(0)
    found = _low(pool, n, limit[0] if leave > 0 else cut, keys, low)
    if found < leave:
        found = _low(pool, n, np.inf, keys, low)
    if leave > 0:
        cut, last = _cut(pool, found, leave, salt, keys, limit, work)
    for i in range(held, n):
        place[pool[i]] = _LEAVES
    for at in range(found - 1, -1, -1):  # from the last: who takes the place has been looked at
        i = low[at]
        unit = pool[i]
        key = keys[unit]
        if key == -np.inf or key < cut or (key == cut and _hash(unit, salt) >= last):
            place[unit] = _OUT
            more -= i >= held
            n -= 1
            pool[i] = pool[n]
    return n, more


@numba.njit(nogil=True, cache=True)
def loop(
    units: Any, ends: Any, groups: Any, ema: Any, recency: Any, sink: Any, last: Any, rule: Any, salts: Any, sizes: Any,
    hits: Any, counts: Any,
) -> None:  # fmt: skip
    """Replay prefill and steps; see `Pager` for the order within a tick. `counts`: moves, held, pinned."""
    blocks, layers, heads, context, block_size, capacity = sizes
    complete, rest = context // block_size, context % block_size
    wide = layers * heads
    place, scaled, keys = np.zeros(blocks * wide, np.int8), np.zeros(blocks * wide), np.empty(blocks * wide)
    pool, size = np.empty(2 * blocks * wide, np.int32), 2 * blocks * wide
    work, limit = (np.empty(size, np.int32), np.empty(size), np.empty(size, np.uint64)), np.zeros(1)
    score = (recency, last, scaled, sink, rule)
    held = fixed = pending = 0  # evictable units; open or not yet backed up; of these, backed up at the next tick
    for tick in range(-layers, len(ends) - 1):
        step, layer = tick // layers, tick % layers
        salt, row = salts[step + 1], tick + layers
        if step >= 0 and layer == 0 and rule[0] != 0:  # all are a step older
            for unit in range(((context + step - 1) // block_size + 1) * wide):
                keys[unit] = _key(unit, step, score)
        for i in range(pending):  # the backup of the last full block is acknowledged
            unit = (complete - 1) * wide + i
            place[unit] = _LEAVES
            pool[held + i] = unit
        held, fixed, pending = held + pending, fixed - pending, 0
        turns = step >= 0 and (context + step) % block_size == 0
        if turns and layer == 0 and (context + step) // block_size > complete:
            complete, pending = complete + 1, wide
        if turns or (step < 0 and rest):  # a block opens in this layer; the lowest keys make room
            over = held + fixed + heads - capacity
            if over > 0:
                held, _ = _choose(pool, held, 0, held - over, salt, keys, limit, place, work)
            for h in range(heads):
                place[((context + max(step, 0)) // block_size) * wide + layer * heads + h] = _OPEN
            fixed += heads
        more = 0
        if step < 0:
            for b in range(complete):
                for h in range(heads):
                    pool[held + more] = b * wide + layer * heads + h
                    more += 1
        else:
            for i in range(ends[tick], ends[tick + 1]):
                unit = units[i]
                last[unit] = step
                if place[unit] == _OUT:
                    pool[held + more] = unit
                    more += 1
                else:
                    hits[step, groups[i]] += 1
        for b in range((context + max(step, -1)) // block_size + 1):
            for unit in range(b * wide + layer * heads, b * wide + (layer + 1) * heads):
                scaled[unit] = ema[row, b * heads + unit % heads]
                keys[unit] = _key(unit, step, score)
        if more:
            held, kept = _choose(pool, held, more, capacity - fixed, salt, keys, limit, place, work)
            if step >= 0:
                counts[0, step] += kept
        if step >= 0 and layer == layers - 1:
            counts[1, step] = held + fixed
            for i in range(held):
                counts[2, step] += keys[pool[i]] >= rule[4]
