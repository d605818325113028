"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags

__all__ = ["Fifo"]


@REQUEST_POLICIES.register("fifo")
@dataclass
class Fifo:
    """Keep the blocks that were taken in last, however often they are asked for.

    Source: the textbook policy.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    inside = np.zeros(distinct, np.bool_)
    ring = np.full(capacity, -1, np.int32)
    oldest = 0
    for at in range(len(blocks)):
        block = blocks[at]
        hit[at] = inside[block]
        if not inside[block]:
            if ring[oldest] >= 0:
                inside[ring[oldest]] = False
            ring[oldest] = block
            inside[block] = True
            oldest = oldest + 1 if oldest + 1 < capacity else 0
