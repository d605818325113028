"""Least recently used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, take, to_front
from kvpager.policies.requests.machine import AHEAD, prefetch

__all__ = ["Lru"]


@REQUEST_POLICIES.register("lru")
@dataclass
class Lru:
    """Keep the blocks that were asked for last.

    Source: the textbook policy.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    ahead, behind = chains(distinct, 1)
    head, held = distinct, 0
    for at in range(len(blocks)):
        far, near = blocks[min(at + 2 * AHEAD, len(blocks) - 1)], blocks[min(at + AHEAD, len(blocks) - 1)]
        prefetch(ahead, far)
        prefetch(behind, far)
        prefetch(behind, ahead[near])  # its neighbours, or of one that is not held, whatever stands there
        prefetch(ahead, behind[near])
        block = blocks[at]
        hit[at] = ahead[block] >= 0
        if ahead[block] >= 0:
            if behind[head] == block:
                continue
            take(ahead, behind, block)
        elif held < capacity:
            held += 1
        else:
            take(ahead, behind, ahead[head])
        to_front(ahead, behind, head, block)
