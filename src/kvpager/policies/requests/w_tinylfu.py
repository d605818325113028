"""W-TinyLFU: a sketch of past frequencies decides who may enter the main cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, move, take, to_front

__all__ = ["WTinyLfu"]


@REQUEST_POLICIES.register("wtinylfu")
@dataclass
class WTinyLfu:
    """Keep what leaves a small LRU window if it was asked for more often than what it would push out.

    Source: TinyLFU, Einziger, Friedman and Manes, ACM Trans. Storage 13(4), 2017 (W-TinyLFU: window, segmented LRU, sketch
    that is halved after a sample of accesses). Differs in: no doorkeeper, and the window's share is fixed.

    Parameters
    ----------
    window, protected : float
        Share of the window, and of what is protected in the rest, in (0, 1).
    sample : int
        Accesses between halvings, in capacities.
    """

    window: float = 0.01
    protected: float = 0.8
    sample: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.window < 1 or not 0 < self.protected < 1 or self.sample < 1:
            raise BadInput(
                f"wtinylfu: window = {self.window}, protected = {self.protected}, sample = {self.sample}: "
                "give two shares in (0, 1) and 1 or more capacities"
            )

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        window = max(int(capacity * self.window), 1)
        protected = int((capacity - window) * self.protected)
        width = 1 << max(int(capacity).bit_length(), 4)
        _replay(blocks, distinct, capacity, hit, window, protected, width, self.sample * capacity)


@numba.njit(nogil=True, cache=True)
def _replay(
    blocks: Any, distinct: Any, capacity: Any, hit: Any, most_window: Any, most_protected: Any, width: Any, sample: Any
) -> None:  # fmt: skip
    ahead, behind = chains(distinct, 3)
    place = np.full(distinct, -1, np.int8)  # 0 window, 1 probation, 2 protected
    size = np.zeros(3, np.int64)
    sketch = np.zeros((4, width), np.uint8)
    seen = 0
    for at in range(len(blocks)):
        block = blocks[at]
        was = place[block]
        hit[at] = was >= 0
        _count(sketch, block)
        seen += 1
        if seen == sample:
            sketch >>= np.uint8(1)
            seen //= 2
        if was == 0 or was == 2:
            take(ahead, behind, block)
            to_front(ahead, behind, distinct + was, block)
            continue
        if was == 1:
            move(ahead, behind, place, size, distinct, block, 2)
            if size[2] > most_protected:
                move(ahead, behind, place, size, distinct, ahead[distinct + 2], 1)
            continue
        move(ahead, behind, place, size, distinct, block, 0)
        if size[0] > most_window:
            comes = ahead[distinct]
            move(ahead, behind, place, size, distinct, comes, 1)
            if size.sum() > capacity:
                goes = ahead[distinct + 1]
                if goes == comes or _frequency(sketch, comes) <= _frequency(sketch, goes):
                    goes = comes
                if goes == comes and size[1] == 1 and size[2] > 0:  # nothing on probation to be compared with
                    other = ahead[distinct + 2]
                    goes = other if _frequency(sketch, comes) > _frequency(sketch, other) else comes
                move(ahead, behind, place, size, distinct, goes, -1)


@numba.njit(inline="always")
def _cell(block: Any, row: Any, width: Any) -> Any:
    """Where a block counts in a row of the sketch (a finaliser of splitmix64, seeded by the row)."""
    mixed = np.uint64(block) + np.uint64(0x9E3779B97F4A7C15) * np.uint64(row + 1)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) & np.uint64(width - 1)


@numba.njit(inline="always")
def _count(sketch: Any, block: Any) -> None:
    """Count an access, up to 15."""
    for row in range(4):
        cell = _cell(block, row, sketch.shape[1])
        if sketch[row, cell] < 15:
            sketch[row, cell] += np.uint8(1)


@numba.njit(inline="always")
def _frequency(sketch: Any, block: Any) -> Any:
    """Estimate how often a block was asked for lately: never too low, but for the halvings."""
    least = np.uint8(255)
    for row in range(4):
        least = min(least, sketch[row, _cell(block, row, sketch.shape[1])])
    return least
