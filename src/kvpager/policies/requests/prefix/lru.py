"""Least recently used ends of prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.chains import chains, take, to_front
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES, Runs, Starts

__all__ = ["PrefixLru"]


@PREFIX_POLICIES.register("lru")
@dataclass
class PrefixLru:
    """Drop the leaf that was asked for longest ago.

    Source: the rule of serving engines. One list does, if a request touches its blocks from the last to the first: a block is
    then never less recent than its children.
    """

    def replay(self, blocks: Ids, starts: Starts, distinct: int, capacity: int, runs: Runs) -> None:
        _replay(blocks, starts, distinct, capacity, runs)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, starts: Any, distinct: Any, capacity: Any, runs: Any) -> None:
    ahead, behind = chains(distinct, 1)
    mine = np.full(distinct, -1, np.int32)
    held = 0
    for request in range(len(starts) - 1):
        first, end = starts[request], starts[request + 1]
        at = first
        while at < end and ahead[blocks[at]] >= 0:
            mine[blocks[at]] = request
            at += 1
        runs[request] = at - first
        while at < end:
            block = blocks[at]
            if held == capacity:
                oldest = ahead[distinct]
                while mine[oldest] == request and oldest != distinct:
                    oldest = ahead[oldest]
                if oldest == distinct:
                    break
                take(ahead, behind, oldest)
                held -= 1
            to_front(ahead, behind, distinct, block)
            mine[block] = request
            held += 1
            at += 1
        for back in range(at - 1, first - 1, -1):
            take(ahead, behind, blocks[back])
            to_front(ahead, behind, distinct, blocks[back])
