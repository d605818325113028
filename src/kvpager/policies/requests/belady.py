"""Belady's rule at request level: drop what is used again last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.heaps import push, replace_top, rise

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
            rise(heap, place, use, place[block])
        elif held < len(heap):
            push(heap, place, use, block, held)
            held += 1
        else:
            replace_top(heap, place, use, block, held)
