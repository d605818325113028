"""Least frequently used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import take, to_front

__all__ = ["Lfu"]


@REQUEST_POLICIES.register("lfu")
@dataclass
class Lfu:
    """Keep the blocks that were asked for most often since they were taken in; of equal ones the most recently used.

    Source: the textbook policy ("in-cache LFU"), with a list for each frequency, so that every access takes constant time.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        most = int(np.bincount(blocks, minlength=1).max())
        _replay(blocks, distinct, capacity, hit, most)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any, most: Any) -> None:
    ahead = np.full(distinct + most + 1, -1, np.int32)
    behind = np.full(distinct + most + 1, -1, np.int32)
    for head in range(distinct, distinct + most + 1):
        ahead[head] = behind[head] = head
    count = np.zeros(distinct, np.int32)
    held, least = 0, 1
    for at in range(len(blocks)):
        block = blocks[at]
        hit[at] = count[block] > 0
        if count[block] > 0:
            take(ahead, behind, block)
            if count[block] == least and behind[distinct + least] == distinct + least:
                least += 1
        else:
            if held < capacity:
                held += 1
            else:
                gone = ahead[distinct + least]
                take(ahead, behind, gone)
                count[gone] = 0
            least = 1
        count[block] += 1
        to_front(ahead, behind, distinct + count[block], block)
