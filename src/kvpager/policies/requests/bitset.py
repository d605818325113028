"""A set of whole numbers of which the largest is found at once: bits, and above each 64 words a word that says which hold any.

Arrays ``bits`` of uint64: the words of the set itself come first, then those of each level above it, up to one word; `starts`
says where each level begins.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from kvpager.policies.requests.machine import highest_bit

__all__ = ["add", "bitset", "discard", "largest"]

_ONE, _SIX, _LOW = np.uint64(1), np.int64(6), np.int64(63)


@numba.njit(inline="always")
def bitset(numbers: Any) -> Any:
    """Return an empty set of numbers from 0 to below `numbers`: ``bits, starts``."""
    starts = np.zeros(12, np.int64)
    levels, words = 0, np.int64(numbers)
    while levels == 0 or words > 1:
        words = max((words + _LOW) >> _SIX, np.int64(1))
        starts[levels + 1] = starts[levels] + words
        levels += 1
    return np.zeros(starts[levels], np.uint64), starts[: levels + 1]


@numba.njit(inline="always")
def add(bits: Any, starts: Any, number: Any) -> None:
    """Put `number` in."""
    at = np.int64(number)
    for level in range(len(starts) - 1):
        word = starts[level] + (at >> _SIX)
        before = bits[word]
        bits[word] = before | (_ONE << np.uint64(at & _LOW))
        if before:
            return
        at >>= _SIX


@numba.njit(inline="always")
def discard(bits: Any, starts: Any, number: Any) -> None:
    """Take `number` out, which is in."""
    at = np.int64(number)
    for level in range(len(starts) - 1):
        word = starts[level] + (at >> _SIX)
        bits[word] &= ~(_ONE << np.uint64(at & _LOW))
        if bits[word]:
            return
        at >>= _SIX


@numba.njit(inline="always")
def largest(bits: Any, starts: Any) -> Any:
    """Return the largest number of a set that is not empty."""
    at = np.int64(0)
    for level in range(len(starts) - 2, -1, -1):
        at = (at << _SIX) | highest_bit(bits[starts[level] + at])
    return at
