"""Doubly linked lists of blocks in two arrays, for compiled policies: a list is a ring through its head, which is no block.

Arrays of ``distinct + heads`` entries serve as many lists as there are heads; a block stands in one of them, or in none,
where its `ahead` is -1. Behind a head stands the newest block, ahead of it the oldest.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["chains", "move", "take", "to_front"]


@numba.njit(inline="always")
def chains(distinct: Any, heads: Any) -> Any:
    """Return `ahead` and `behind`, int32 [distinct + heads], with the empty lists ``distinct`` to ``distinct + heads - 1``."""
    ahead = np.full(distinct + heads, -1, np.int32)
    behind = np.full(distinct + heads, -1, np.int32)
    for head in range(distinct, distinct + heads):
        ahead[head] = behind[head] = head
    return ahead, behind


@numba.njit(inline="always")
def to_front(ahead: Any, behind: Any, head: Any, block: Any) -> None:
    """Put a block that stands in no list in front of a list."""
    first = behind[head]
    behind[head] = block
    ahead[block] = head
    behind[block] = first
    ahead[first] = block


@numba.njit(inline="always")
def take(ahead: Any, behind: Any, block: Any) -> None:
    """Take a block out of its list."""
    before, after = ahead[block], behind[block]
    behind[before] = after
    ahead[after] = before
    ahead[block] = -1


@numba.njit(inline="always")
def move(ahead: Any, behind: Any, place: Any, size: Any, distinct: Any, block: Any, now: Any) -> None:
    """Take a block from the list that it stands in, if any, to the front of list number `now`; -1 = to none.

    `place` tells each block's list, and `size` how many stand in each.
    """
    if place[block] >= 0:
        take(ahead, behind, block)
        size[place[block]] -= 1
    if now >= 0:
        to_front(ahead, behind, distinct + now, block)
        size[now] += 1
    place[block] = now
