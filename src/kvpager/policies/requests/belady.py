"""Belady's rule at request level: drop what is used again last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags

__all__ = ["Belady"]


@REQUEST_POLICIES.register("belady")
@dataclass
class Belady:
    """Keep the blocks that are used again soonest; a block must be taken in when it is asked for.

    No policy that takes in every missed block has more hits.
    Source: Belady, IBM Systems Journal 5(2), 1966. Ties, which are blocks that are never used again, make no difference.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    n = len(blocks)
    again = np.empty(n, np.int32)  # the next use of the block that is accessed
    last = np.full(distinct, n, np.int32)
    for at in range(n - 1, -1, -1):
        again[at] = last[blocks[at]]
        last[blocks[at]] = at
    heap = np.empty(min(capacity, distinct), np.int32)  # blocks, the one of farthest next use on top
    place = np.full(distinct, -1, np.int32)
    use = last
    held = 0
    for at in range(n):
        block = blocks[at]
        hit[at] = place[block] >= 0
        use[block] = again[at]
        if place[block] >= 0:
            _rise(heap, place, use, place[block])
        elif held < len(heap):
            heap[held] = block
            place[block] = held
            held += 1
            _rise(heap, place, use, held - 1)
        else:
            place[heap[0]] = -1
            heap[0] = block
            place[block] = 0
            _sink(heap, place, use)


@numba.njit(inline="always")
def _rise(heap: Any, place: Any, use: Any, start: Any) -> None:
    """Move an entry up to where it belongs."""
    at, block = start, heap[start]
    while at > 0:
        above = (at - 1) >> 1
        if use[heap[above]] >= use[block]:
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = block
    place[block] = at


@numba.njit(inline="always")
def _sink(heap: Any, place: Any, use: Any) -> None:
    """Move the top entry down to where it belongs."""
    at, block, held = 0, heap[0], len(heap)
    while 2 * at + 1 < held:
        below = 2 * at + 1
        if below + 1 < held and use[heap[below + 1]] > use[heap[below]]:
            below += 1
        if use[heap[below]] <= use[block]:
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = block
    place[block] = at
