"""Belady's rule at request level: drop what is used again last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.bitset import add, bitset, discard, largest
from kvpager.policies.requests.machine import AHEAD, prefetch

__all__ = ["Belady"]


@REQUEST_POLICIES.register("belady")
@dataclass
class Belady:
    """Keep the blocks that are used again soonest; a block must be taken in when it is asked for.

    No policy that takes in every missed block has more hits.
    Source: Belady, IBM Systems Journal 5(2), 1966. Ties, which are blocks that are never used again, make no difference.
    A held block is known by its next use alone: no two have the same.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    n = len(blocks)
    again = np.empty(n, np.int32)  # the next use of the block that is accessed
    last = np.full(distinct, n, np.int32)
    for at in range(n - 1, -1, -1):
        prefetch(last, blocks[max(at - AHEAD, 0)])
        again[at] = last[blocks[at]]
        last[blocks[at]] = at
    uses, starts = bitset(n)  # the next uses of held blocks: access `at` hits if it is among them
    held = spent = 0  # blocks with a next use, and blocks without
    for at in range(n):
        hit[at] = (uses[at >> 6] >> np.uint64(at & 63)) & np.uint64(1)
        if hit[at]:
            discard(uses, starts, at)
            held -= 1
        elif held + spent == capacity and spent:
            spent -= 1
        elif held == capacity:
            discard(uses, starts, largest(uses, starts))
            held -= 1
        if again[at] < n:
            add(uses, starts, again[at])
            held += 1
        else:
            spent += 1
