"""S3-FIFO: a small queue on probation, a main queue, and ghosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, move

__all__ = ["S3Fifo"]


@REQUEST_POLICIES.register("s3-fifo")
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
                f"s3-fifo: small = {self.small}, threshold = {self.threshold}: give a share in (0, 1) and 1 or more hits"
            )

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        small = max(int(capacity * self.small), 1)
        _replay(blocks, distinct, capacity, hit, small, int(capacity * (1 - self.small)), self.threshold)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any, most_small: Any, ghosts: Any, threshold: Any) -> None:
    ahead, behind = chains(distinct, 3)
    place = np.full(distinct, -1, np.int8)  # 0 small, 1 main, 2 ghost
    count = np.zeros(distinct, np.int8)
    size = np.zeros(3, np.int64)
    dropped = False
    for at in range(len(blocks)):
        block = blocks[at]
        was = place[block]
        hit[at] = 0 <= was <= 1
        if 0 <= was <= 1:
            count[block] = min(count[block] + 1, 3)
            continue
        if was == 2:
            move(ahead, behind, place, size, distinct, block, -1)
        while size[0] + size[1] >= capacity:
            dropped = True
            if size[1] > capacity - most_small or size[0] == 0:
                _drop_main(ahead, behind, place, count, size, distinct)
            else:
                _drop_small(ahead, behind, place, count, size, distinct, threshold, ghosts)
        now = 1 if was == 2 or (not dropped and size[0] >= most_small) else 0
        count[block] = 0
        move(ahead, behind, place, size, distinct, block, now)


@numba.njit
def _drop_main(ahead: Any, behind: Any, place: Any, count: Any, size: Any, distinct: Any) -> None:
    """Drop the oldest block of the main queue that has no hit left; each that is passed loses one."""
    while size[1] > 0:
        oldest = ahead[distinct + 1]
        if count[oldest] > 0:
            count[oldest] -= 1
            move(ahead, behind, place, size, distinct, oldest, 1)
        else:
            move(ahead, behind, place, size, distinct, oldest, -1)
            return


@numba.njit
def _drop_small(
    ahead: Any, behind: Any, place: Any, count: Any, size: Any, distinct: Any, threshold: Any, ghosts: Any
) -> None:  # fmt: skip
    """Make a ghost of the oldest block of the small queue that was not asked for enough; the others go to the main queue."""
    while size[0] > 0:
        oldest = ahead[distinct]
        if count[oldest] >= threshold:
            count[oldest] = 0
            move(ahead, behind, place, size, distinct, oldest, 1)
        else:
            if ghosts > 0:
                if size[2] >= ghosts:
                    move(ahead, behind, place, size, distinct, ahead[distinct + 2], -1)
                move(ahead, behind, place, size, distinct, oldest, 2)
            else:
                move(ahead, behind, place, size, distinct, oldest, -1)
            return
