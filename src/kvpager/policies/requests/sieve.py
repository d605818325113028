"""SIEVE: a queue that is never reordered, and a hand that looks for what was not visited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, take, to_front

__all__ = ["Sieve"]


@REQUEST_POLICIES.register("sieve")
@dataclass
class Sieve:
    """Drop the next block, from old to new, that was not asked for since the hand went by.

    Source: SIEVE, Zhang et al., NSDI 2024, algorithm 1.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    ahead, behind = chains(distinct, 1)
    visited = np.zeros(distinct + 1, np.bool_)
    head, held, hand = distinct, 0, distinct
    for at in range(len(blocks)):
        block = blocks[at]
        hit[at] = ahead[block] >= 0
        if ahead[block] >= 0:
            visited[block] = True
            continue
        if held < capacity:
            held += 1
        else:
            if hand == head:
                hand = ahead[head]
            while visited[hand]:
                visited[hand] = False
                hand = ahead[hand]
                if hand == head:
                    hand = ahead[head]
            gone, hand = hand, ahead[hand]
            take(ahead, behind, gone)
        to_front(ahead, behind, head, block)
