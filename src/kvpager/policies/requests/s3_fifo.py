"""S3-FIFO: a small queue on probation, a main queue, and ghosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.machine import AHEAD, prefetch
from kvpager.policies.requests.queues import dequeue, enqueue, first, length, queue

__all__ = ["S3Fifo"]


@REQUEST_POLICIES.register("s3fifo")
@dataclass
class S3Fifo:
    """Keep blocks that were asked for again while they stood in a small queue, or soon after they left it.

    Source: S3-FIFO, Yang et al., SOSP 2023, algorithm 1. Differs in: until the first block is dropped, new blocks go
    straight to the main queue once the small one is full, as in the authors' simulator.

    Parameters
    ----------
    small : float
        Share of the small queue, in (0, 1).
    threshold : int
        Hits in the small queue that take a block to the main one.
    """

    small: float = 0.1
    threshold: int = 2

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.small < 1 or self.threshold < 1:
            raise BadInput(
                f"s3fifo: small = {self.small}, threshold = {self.threshold}: give a share in (0, 1) and 1 or more hits"
            )

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        small = max(int(capacity * self.small), 1)
        _replay(blocks, distinct, capacity, hit, small, int(capacity * (1 - self.small)), self.threshold)


# What is known of a block stands in one byte: nothing, that it is a ghost, or its queue and in the low bits its hits, up to 3.
_GHOST, _SMALL, _MAIN, _HITS = 1, 4, 8, 3


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any, most_small: Any, ghosts: Any, threshold: Any) -> None:
    known = np.zeros(distinct, np.int8)
    small, main = queue(capacity), queue(capacity)
    gone = queue(2 * ghosts + 1)  # some of them were asked for again since, and are ghosts no more
    entry = np.zeros(distinct, np.int32)  # where in `gone` a ghost stands
    count = np.zeros(1, np.int64)  # of ghosts
    dropped = False
    for at in range(len(blocks)):
        prefetch(known, blocks[min(at + AHEAD, len(blocks) - 1)])
        block = blocks[at]
        was = known[block]
        hit[at] = was >= _SMALL
        if was >= _SMALL:
            known[block] = was + (was & _HITS < _HITS)
            continue
        if was == _GHOST:
            count[0] -= 1
            known[block] = 0
        while length(small) + length(main) >= capacity:
            dropped = True
            if length(main) > capacity - most_small or length(small) == 0:
                _drop_main(main, known)
            else:
                _drop_small(small, main, known, threshold, gone, entry, count, ghosts)
        if was == _GHOST or (not dropped and length(small) >= most_small):
            known[block] = _MAIN
            enqueue(main, block)
        else:
            known[block] = _SMALL
            enqueue(small, block)


@numba.njit(inline="always")
def _drop_main(main: Any, known: Any) -> None:
    """Drop the oldest block of the main queue that has no hit left; each that is passed loses one."""
    while length(main) > 0:
        oldest = dequeue(main)
        if known[oldest] & _HITS == 0:
            known[oldest] = 0
            return
        known[oldest] -= 1
        enqueue(main, oldest)


@numba.njit(inline="always")
def _drop_small(
    small: Any, main: Any, known: Any, threshold: Any, gone: Any, entry: Any, count: Any, ghosts: Any
) -> None:  # fmt: skip
    """Make a ghost of the oldest block of the small queue that was not asked for enough; the others go to the main queue."""
    while length(small) > 0:
        oldest = dequeue(small)
        if known[oldest] & _HITS < threshold:
            known[oldest] = 0
            if ghosts > 0:
                _haunt(oldest, known, gone, entry, count, ghosts)
            return
        known[oldest] = _MAIN
        enqueue(main, oldest)


@numba.njit(inline="always")
def _haunt(block: Any, known: Any, gone: Any, entry: Any, count: Any, ghosts: Any) -> None:
    """Make a ghost of `block`; the oldest ghost makes room."""
    while count[0] == ghosts:
        place = first(gone)
        oldest = dequeue(gone)
        if known[oldest] == _GHOST and entry[oldest] == place:
            known[oldest] = 0
            count[0] -= 1
    if length(gone) == len(gone[0]):  # full of what is no ghost any more: each ghost once through, in order
        for _ in range(length(gone)):
            place = first(gone)
            oldest = dequeue(gone)
            if known[oldest] == _GHOST and entry[oldest] == place:
                entry[oldest] = enqueue(gone, oldest)
    known[block] = _GHOST
    entry[block] = enqueue(gone, block)
    count[0] += 1
