"""How deep in an LRU stack each access finds its block: every capacity at once, exactly.

An access hits in an LRU cache of C blocks if its depth is at most C; so the depths of one pass give the hits at all
capacities. The depth is the number of different blocks touched since the last touch, itself included, and is counted by a
tree of partial sums over the touches that are the last of their blocks.

Source: Mattson et al., IBM Systems Journal 9(2), 1970; the tree is Fenwick's, Software: Practice and Experience 24(3), 1994.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids

__all__ = ["NEVER", "block_depths", "hits_by_capacity", "leading_depths", "prefix_depths"]

NEVER = np.iinfo(np.int32).max
"""Depth of a block that was not touched before."""

Depths = NDArray[np.int32]


def block_depths(blocks: Ids, distinct: int) -> Depths:
    """Return the depth of each access, where every access touches its block at once.

    Parameters
    ----------
    blocks : int32 [n]
        In time order.
    distinct : int
        Above every id.

    Returns
    -------
    int32 [n]
        From 1; `NEVER` for a first access.
    """
    depths = np.empty(len(blocks), np.int32)
    _depths(blocks, np.arange(len(blocks) + 1), distinct, depths)
    return depths


def prefix_depths(blocks: Ids, starts: NDArray[np.int64], distinct: int) -> Depths:
    """Return the depth of each access, where a request looks up all its blocks and then touches them, the last one first.

    A block is thus never less recent than those behind it in a prompt, so that a cache that drops the least recent block
    drops the end of a prefix: depths do not fall along a request's chained blocks, and a hit at one is a hit at all before it.

    Parameters
    ----------
    blocks : int32 [n]
        Chained ids, request by request.
    starts : int64 [requests + 1]
        Where each request begins.
    distinct : int
        Above every id.

    Returns
    -------
    int32 [n]
    """
    depths = np.empty(len(blocks), np.int32)
    _depths(blocks, starts, distinct, depths)
    return depths


def leading_depths(depths: Depths, starts: NDArray[np.int64]) -> Depths:
    """Return the deepest depth of each access and those before it in its request: the capacity from which all these hit.

    Parameters
    ----------
    depths : int32 [n]
        From `block_depths` or `prefix_depths`; of the latter, the same comes back.
    starts : int64 [requests + 1]
        Where each request begins.

    Returns
    -------
    int32 [n]
    """
    leading = depths.copy()
    _lead(leading, starts)
    return leading


def hits_by_capacity(depths: Depths, weights: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return the hits of an LRU cache of every capacity.

    Parameters
    ----------
    depths : int32 [n]
        From `block_depths` or `prefix_depths`.
    weights : int64 [n], optional
        What each hit counts for, e.g. tokens; default 1.

    Returns
    -------
    int64 [deepest + 1]
        Entry c is for c blocks; more than the last one's capacity changes nothing.
    """
    known = depths != NEVER
    found = depths[known]
    counts = np.bincount(found, minlength=1) if weights is None else _weighed(found, weights[known])
    return np.cumsum(counts, dtype=np.int64)


def _weighed(depths: Depths, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(int(depths.max(initial=0)) + 1, np.int64)
    np.add.at(sums, depths, weights)
    return sums


@numba.njit(nogil=True, cache=True)
def _depths(blocks: Any, starts: Any, distinct: Any, depths: Any) -> None:
    n = len(blocks)
    size = 1
    while size < n:
        size *= 2
    tree = np.zeros(size + 1, np.int32)
    last = np.zeros(distinct, np.int32)  # the block's last touch, from 1; 0 = none
    held = touch = 0
    for request in range(len(starts) - 1):
        first, behind = starts[request], starts[request + 1]
        for at in range(first, behind):
            where = last[blocks[at]]
            if where == 0:
                depths[at] = NEVER
                continue
            older = 0
            place = where
            while place > 0:
                older += tree[place]
                place &= place - 1
            depths[at] = held - older + 1
        for at in range(behind - 1, first - 1, -1):
            block = blocks[at]
            where = last[block]
            if where:
                _add(tree, where, -1, size)
                held -= 1
            touch += 1
            last[block] = touch
            _add(tree, touch, 1, size)
            held += 1


@numba.njit(nogil=True, cache=True)
def _lead(depths: Any, starts: Any) -> None:
    for request in range(len(starts) - 1):
        for at in range(starts[request] + 1, starts[request + 1]):
            depths[at] = max(depths[at], depths[at - 1])


@numba.njit(inline="always")
def _add(tree: Any, place: Any, change: Any, size: Any) -> None:
    """Add to the sums that cover a place."""
    while place <= size:
        tree[place] += change
        place += place & -place
