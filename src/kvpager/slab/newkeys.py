"""Keys that no block of a store has had, nor will have after a crash."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np

from kvpager.slab.record import U64

__all__ = ["NewKeys"]


class NewKeys:
    """A random number drawn when the store was opened, and a counter.

    Parameters
    ----------
    taken : callable
        Returns the keys that the store holds.
    """

    def __init__(self, taken: Callable[[], U64]) -> None:
        self._taken = taken
        self._counter, self._epoch = 0, self._new_epoch()

    def __call__(self, count: int) -> U64:
        """Return `count` new keys, ascending."""
        if self._counter + count > 1 << 32:
            self._counter, self._epoch = 0, self._new_epoch()
        first = (self._epoch << 32) + self._counter
        self._counter += count
        return np.arange(first, first + count, dtype=np.uint64)

    def _new_epoch(self) -> int:
        """A number above 0 below 2^32 that no key of the store begins with."""
        taken = set((self._taken() >> np.uint64(32)).tolist())
        while (epoch := secrets.randbelow((1 << 32) - 1) + 1) in taken:
            pass
        return epoch
