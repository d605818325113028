"""Caches of prompt prefixes: a block is of use only if all before it are there.

A request looks up its chain before anything changes; what hits is the leading run. Then its missing blocks are taken in,
from the front, as far as there is room or a worse block to drop. Ids are chained: a block's id says all that stands before it
(`chained`), so a block and its parent are always of the same prompts.

The rules are those of kvcache-simulator 0.1.3 (MIT), which the tests hold these loops against, but for a request longer than
the whole cache: it drops the request's own newest block and stops one short; here the first blocks stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.policies.requests.chains import chains, take, to_front
from kvpager.policies.requests.heaps import push, replace_top, rise

__all__ = ["PREFIX_RULES", "chained", "fifo_runs", "hit_tokens", "lru_runs", "optimal_runs"]

Starts = NDArray[np.int64]
Runs = NDArray[np.int32]


def chained(blocks: Ids, starts: Starts, distinct: int) -> tuple[Ids, int]:
    """Return ids that tell a block with all before it, and how many there are, in the order of first appearance.

    Parameters
    ----------
    blocks : int32 [n]
        Ids of contents, request by request.
    starts : int64 [requests + 1]
        Where each request begins.
    distinct : int
        Above every id.
    """
    nodes = np.empty(len(blocks), np.int32)
    return nodes, int(_chain(blocks, starts, distinct, nodes))


def lru_runs(blocks: Ids, starts: Starts, distinct: int, capacity: int) -> Runs:
    """Return each request's leading hits, where the least recently used end of a prefix is dropped.

    Parameters
    ----------
    blocks : int32 [n]
        Chained ids, request by request.
    starts : int64 [requests + 1]
        Where each request begins.
    distinct : int
        Above every id.
    capacity : int
        Blocks.

    Returns
    -------
    int32 [requests]
    """
    runs = np.zeros(len(starts) - 1, np.int32)
    if capacity > 0:
        _lru(blocks, starts, distinct, capacity, runs)
    return runs


def fifo_runs(blocks: Ids, starts: Starts, distinct: int, capacity: int) -> Runs:
    """As `lru_runs`, where the block that was taken in first is dropped, whatever stands behind it."""
    runs = np.zeros(len(starts) - 1, np.int32)
    if capacity > 0:
        _fifo(blocks, starts, distinct, capacity, runs)
    return runs


def optimal_runs(blocks: Ids, starts: Starts, distinct: int, capacity: int) -> Runs:
    """As `lru_runs`, where the block of the farthest next request is dropped, or not taken in.

    Of equal ones the newer, hence deeper, id goes. Belady's rule on the ends of prefixes; not proved to be optimal.
    """
    runs = np.zeros(len(starts) - 1, np.int32)
    if capacity > 0:
        _optimal(blocks, starts, distinct, capacity, runs)
    return runs


PREFIX_RULES: Mapping[str, Callable[[Ids, Starts, int, int], Runs]] = {
    "lru": lru_runs,
    "fifo": fifo_runs,
    "optimal": optimal_runs,
}
"""By name."""


def hit_tokens(runs: Runs, starts: Starts, input_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Return the tokens of each request's leading hits; a last block that is not full counts for what it holds.

    Parameters
    ----------
    runs : int32 [requests]
        Leading hits, in blocks.
    starts : int64 [requests + 1]
        Where each request begins.
    input_tokens : int64 [requests]
        Lengths of the prompts.
    block_size : int
        Tokens of a block.

    Returns
    -------
    int64 [requests]
    """
    return np.minimum(runs.astype(np.int64) * block_size, input_tokens)


@numba.njit(nogil=True, cache=True)
def _chain(blocks: Any, starts: Any, distinct: Any, nodes: Any) -> Any:
    size = 1
    while size < 2 * len(blocks) + 2:
        size *= 2
    keys = np.full(size, -1, np.int64)
    values = np.empty(size, np.int32)
    known = 0
    for request in range(len(starts) - 1):
        parent = -1
        for at in range(starts[request], starts[request + 1]):
            key = np.int64(parent + 1) * distinct + blocks[at]
            mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
            place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(size - 1))
            while keys[place] >= 0 and keys[place] != key:
                place = (place + 1) & (size - 1)
            if keys[place] < 0:
                keys[place], values[place] = key, known
                known += 1
            parent = values[place]
            nodes[at] = parent
    return known


@numba.njit(nogil=True, cache=True)
def _lru(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
    ahead, behind = chains(distinct, 1)
    mine = np.full(distinct, -1, np.int32)
    held = 0
    for request in range(len(starts) - 1):
        first, end = starts[request], starts[request + 1]
        at = first
        while at < end and ahead[blocks[at]] >= 0:
            mine[blocks[at]] = request
            at += 1
        runs[request] = at - first
        while at < end:
            block = blocks[at]
            if held == capacity:
                oldest = ahead[distinct]
                while mine[oldest] == request and oldest != distinct:
                    oldest = ahead[oldest]
                if oldest == distinct:
                    break
                take(ahead, behind, oldest)
                held -= 1
            to_front(ahead, behind, distinct, block)
            mine[block] = request
            held += 1
            at += 1
        for back in range(at - 1, first - 1, -1):
            take(ahead, behind, blocks[back])
            to_front(ahead, behind, distinct, blocks[back])


@numba.njit(nogil=True, cache=True)
def _fifo(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
    inside = np.zeros(distinct, np.bool_)
    ring = np.full(capacity, -1, np.int32)
    oldest = 0
    for request in range(len(starts) - 1):
        first, end = starts[request], starts[request + 1]
        at = first
        while at < end and inside[blocks[at]]:
            at += 1
        runs[request] = at - first
        for place in range(at, end):
            block = blocks[place]
            if inside[block]:
                continue
            if ring[oldest] >= 0:
                inside[ring[oldest]] = False
            ring[oldest] = block
            inside[block] = True
            oldest = oldest + 1 if oldest + 1 < capacity else 0


@numba.njit(nogil=True, cache=True)
def _optimal(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
    requests = len(starts) - 1
    again = np.empty(len(blocks), np.int32)
    last = np.full(distinct, requests, np.int32)
    for request in range(requests - 1, -1, -1):
        for at in range(starts[request], starts[request + 1]):
            again[at] = last[blocks[at]]
        for at in range(starts[request], starts[request + 1]):
            last[blocks[at]] = request
    key = np.empty(distinct, np.int64)  # the next request, then the id: of equal ones the newest goes
    heap = np.empty(min(capacity, distinct), np.int32)
    place = np.full(distinct, -1, np.int32)
    held = 0
    for request in range(requests):
        first, end = starts[request], starts[request + 1]
        at = first
        while at < end and place[blocks[at]] >= 0:
            at += 1
        runs[request] = at - first
        for back in range(first, at):
            key[blocks[back]] = np.int64(again[back]) << 32 | blocks[back]
            rise(heap, place, key, place[blocks[back]])
        while at < end:
            block = blocks[at]
            key[block] = np.int64(again[at]) << 32 | block
            if held < len(heap):
                push(heap, place, key, block, held)
                held += 1
            elif key[heap[0]] > key[block]:
                replace_top(heap, place, key, block, held)
            else:
                break
            at += 1
