"""A moving average of accesses, on the ends of prefixes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.heaps import push, replace_top, rise, sink
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES, Runs, Starts

__all__ = ["PrefixEma"]


@PREFIX_POLICIES.register("ema")
@dataclass
class PrefixEma:
    """Drop the leaf of smallest average access, where a request accesses all its blocks at once and older ones weigh less.

    The clock is that of the block policy `ema`: accesses before this request. Decay is lazy, since it shifts the logarithms of
    all scores alike. Scores outlive eviction, and count what was asked for though there was no room. A block's score is thus at
    least its children's; equal ones are of one prefix, and the last block goes. Blocks of the request itself stay.

    Source: as the block policy `ema`: note 000, part 11; LRFU, Lee et al., IEEE Trans. Computers 50(12), 2001.

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

    def replay(self, blocks: Ids, starts: Starts, distinct: int, capacity: int, runs: Runs) -> None:
        _replay(blocks, starts, distinct, capacity, runs, math.log(2.0) / (self.half_life * capacity))


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any, rate: Any) -> None:
    score = np.full(distinct, np.inf)  # minus the log of the sum of exp(rate * time of access): the largest goes
    key = score.copy()  # the same, but -inf for the blocks of this request
    heap = np.empty(min(capacity, distinct), np.int32)
    place = np.full(distinct, -1, np.int32)
    held = 0
    for request in range(len(starts) - 1):
        first, end, above = starts[request], starts[request + 1], -np.inf
        now = rate * first
        for at in range(first, end):  # a child's score is one step of a float behind its parent's at least: leaves go first
            block = blocks[at]
            score[block] = above = max(-now - np.log1p(np.exp(-score[block] - now)), np.nextafter(above, np.inf))
        at = first
        while at < end and place[blocks[at]] >= 0:
            key[blocks[at]] = -np.inf
            sink(heap, place, key, place[blocks[at]], held)
            at += 1
        runs[request] = at - first
        while at < end:
            key[blocks[at]] = -np.inf
            if held < len(heap):
                push(heap, place, key, blocks[at], held)
                held += 1
            elif key[heap[0]] > -np.inf:
                replace_top(heap, place, key, blocks[at], held)
            else:
                break
            at += 1
        for back in range(first, at):
            key[blocks[back]] = score[blocks[back]]
            rise(heap, place, key, place[blocks[back]])
