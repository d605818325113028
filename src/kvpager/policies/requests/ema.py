"""A moving average of accesses: the notes' score, at request level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.heaps import push, replace_top, sink

__all__ = ["Ema"]


@REQUEST_POLICIES.register("ema")
@dataclass
class Ema:
    """Keep the blocks of largest average access, where each access of the cache is a step and older ones weigh less.

    Source: note 000, part 11, applied to accesses instead of attention; LRFU, Lee et al., IEEE Trans. Computers 50(12),
    2001, has the same score, and shows that one number a block is enough. Scores outlive eviction; of equal ones the block
    asked for last stays.

    Parameters
    ----------
    half_life : float
        Accesses, as a share of the capacity, after which an access weighs half.
    """

    half_life: float = 2.0

    def __post_init__(self) -> None:
        """Check the settings."""
        if not self.half_life > 0 or math.isinf(self.half_life):
            raise BadInput(f"ema: half_life = {self.half_life}: give a number above 0, in capacities")

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit, math.log(2.0) / (self.half_life * capacity))


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any, rate: Any) -> None:
    key = np.full(distinct, np.inf)  # minus the log of the sum of exp(rate * time of access): decay shifts all alike
    heap = np.empty(min(capacity, distinct), np.int32)
    place = np.full(distinct, -1, np.int32)
    held = 0
    for at in range(len(blocks)):
        block, now = blocks[at], rate * at
        hit[at] = place[block] >= 0
        key[block] = -now - np.log1p(np.exp(-key[block] - now))
        if place[block] >= 0:
            sink(heap, place, key, place[block], held)
        elif held < len(heap):
            push(heap, place, key, block, held)
            held += 1
        else:
            replace_top(heap, place, key, block, held)
