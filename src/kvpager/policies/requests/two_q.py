"""2Q: a queue for blocks that were asked for once, ghosts of it, and an LRU list for what came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, take, to_front

__all__ = ["TwoQ"]


@REQUEST_POLICIES.register("2q")
@dataclass
class TwoQ:
    """Keep blocks that were asked for again after they had left a first-in-first-out queue.

    Source: 2Q, Johnson and Shasha, VLDB 1994, full version, with its shares for the queue and for the ghosts.

    Parameters
    ----------
    queue, ghosts : float
        Blocks of the queue and of its ghosts, as shares of the capacity, above 0.
    """

    queue: float = 0.25
    ghosts: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.queue < 1 or self.ghosts <= 0:
            raise BadInput(f"2q: queue = {self.queue}, ghosts = {self.ghosts}: give a share in (0, 1), and one above 0")

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit, max(int(capacity * self.queue), 1), max(int(capacity * self.ghosts), 1))


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any, most: Any, ghosts: Any) -> None:
    ahead, behind = chains(distinct, 3)
    queue, again, gone = distinct, distinct + 1, distinct + 2
    place = np.full(distinct, -1, np.int8)  # 0 queue, 1 again, 2 ghost
    held = queued = remembered = 0
    for at in range(len(blocks)):
        block = blocks[at]
        was = place[block]
        hit[at] = 0 <= was <= 1
        if was == 0:
            continue
        if was == 1:
            take(ahead, behind, block)
            to_front(ahead, behind, again, block)
            continue
        if was == 2:
            take(ahead, behind, block)
            remembered -= 1
        if held < capacity:
            held += 1
        elif queued > most or ahead[again] == again:
            oldest = ahead[queue]
            take(ahead, behind, oldest)
            queued -= 1
            if remembered == ghosts:
                forgotten = ahead[gone]
                take(ahead, behind, forgotten)
                place[forgotten] = -1
                remembered -= 1
            to_front(ahead, behind, gone, oldest)
            place[oldest] = 2
            remembered += 1
        else:
            oldest = ahead[again]
            take(ahead, behind, oldest)
            place[oldest] = -1
        if was == 2:
            to_front(ahead, behind, again, block)
            place[block] = 1
        else:
            to_front(ahead, behind, queue, block)
            place[block] = 0
            queued += 1
