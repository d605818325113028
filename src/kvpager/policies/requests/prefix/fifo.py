"""First in, first out, whatever stands behind a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES, Runs, Starts

__all__ = ["PrefixFifo"]


@PREFIX_POLICIES.register("fifo")
@dataclass
class PrefixFifo:
    """Drop the block that was taken in first, even from before its children, which then are of no use.

    Source: the textbook policy, which knows nothing of prefixes.
    """

    def replay(self, blocks: Ids, starts: Starts, distinct: int, capacity: int, runs: Runs) -> None:
        _replay(blocks, starts, distinct, capacity, runs)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
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
