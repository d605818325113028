"""A heap of blocks for compiled policies, the one of the largest key on top; keys may change where they stand."""

from __future__ import annotations

from typing import Any

import numba

__all__ = ["push", "replace_top", "rise", "sink"]


@numba.njit(inline="always")
def rise(heap: Any, place: Any, key: Any, start: Any) -> None:
    """Move the entry at `start` up to where it belongs, after its key has grown."""
    at, block = start, heap[start]
    while at > 0:
        above = (at - 1) >> 1
        if key[heap[above]] >= key[block]:
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = block
    place[block] = at


@numba.njit(inline="always")
def sink(heap: Any, place: Any, key: Any, start: Any, held: Any) -> None:
    """Move the entry at `start` down to where it belongs among `held`, after its key has shrunk."""
    at, block = start, heap[start]
    while 2 * at + 1 < held:
        below = 2 * at + 1
        if below + 1 < held and key[heap[below + 1]] > key[heap[below]]:
            below += 1
        if key[heap[below]] <= key[block]:
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = block
    place[block] = at


@numba.njit(inline="always")
def push(heap: Any, place: Any, key: Any, block: Any, held: Any) -> None:
    """Put a block in, behind `held` others."""
    heap[held] = block
    rise(heap, place, key, held)


@numba.njit(inline="always")
def replace_top(heap: Any, place: Any, key: Any, block: Any, held: Any) -> None:
    """Put a block in the place of the top, which leaves."""
    place[heap[0]] = -1
    heap[0] = block
    sink(heap, place, key, 0, held)
