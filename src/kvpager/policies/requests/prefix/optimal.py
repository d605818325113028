"""Belady's rule for prefixes, with bypass: no cache has more block hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.heaps import push, replace_top, rise
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES, Runs, Starts

__all__ = ["PrefixOptimal"]


@PREFIX_POLICIES.register("opt")
@dataclass
class PrefixOptimal:
    """Keep the blocks that a request asks for again soonest, among those held and those just asked for; the rest is bypassed.

    No cache of this size has more block hits, nor more leading hits, whatever it keeps. For a block to hit is to be kept from
    one of its requests to the next; of such intervals at most `capacity` fit at a time, and dropping the one that ends last
    keeps the most (Faigle and Nawijn, Discrete Applied Mathematics 58(1), 1995). A block is never asked for later than its
    children, and of equals the newer id, hence the child, goes: so whole prefixes are kept, and every hit is a leading one.
    It is no bound on tokens or whole requests, which weigh blocks otherwise.

    Source: Belady, IBM Systems Journal 5(2), 1966, for requests of many blocks; kvcache-simulator's OPTIMAL is the same.
    """

    def replay(self, blocks: Ids, starts: Starts, distinct: int, capacity: int, runs: Runs) -> None:
        _replay(blocks, starts, distinct, capacity, runs)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
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
