"""Queues of blocks for compiled policies: a ring of int32 and where it begins and how long it is, ``(ring, ends)``."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["dequeue", "enqueue", "first", "length", "queue"]


@numba.njit(inline="always")
def queue(most: Any) -> Any:
    """Return an empty queue for at most `most` blocks."""
    return np.empty(most, np.int32), np.zeros(2, np.int64)


@numba.njit(inline="always")
def length(queue: Any) -> Any:
    """Return how many blocks stand in it."""
    return queue[1][1]


@numba.njit(inline="always")
def first(queue: Any) -> Any:
    """Return the place of the oldest."""
    return queue[1][0]


@numba.njit(inline="always")
def enqueue(queue: Any, block: Any) -> Any:
    """Put a block at the end of a queue that is not full, and return its place."""
    ring, ends = queue
    place = ends[0] + ends[1]
    if place >= len(ring):
        place -= len(ring)
    ring[place] = block
    ends[1] += 1
    return place


@numba.njit(inline="always")
def dequeue(queue: Any) -> Any:
    """Take the oldest block out of a queue that is not empty, and return it."""
    ring, ends = queue
    block = ring[ends[0]]
    ends[0] += 1
    if ends[0] == len(ring):
        ends[0] = 0
    ends[1] -= 1
    return block
