"""Block ids of any kind to dense numbers, at memory speed.

An open-addressing table with linear probing, key and number side by side in one cache line, at most half full. It keeps
what it has seen, so that a trace larger than memory is numbered piece by piece; only its distinct ids must fit.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import CapacityError

__all__ = ["Interner", "intern"]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: spreads runs of ids over the table
_MOST: Final = 2**31 - 1
_GROUP: Final = 64
_SMALL: Final = 1 << 22


class Interner:
    """Numbers ids 0, 1, 2, … in the order in which they first appear.

    Parameters
    ----------
    expected : int
        Distinct ids that will come, if known; the table grows when it must.
    """

    def __init__(self, expected: int = 1 << 12) -> None:
        self.distinct = 0
        self._slots = _table(2 * expected)

    def add(self, ids: NDArray[np.uint64]) -> Ids:
        """Number `ids`, going on from all that came before.

        Parameters
        ----------
        ids : uint64 [n]
            In the order of access.

        Returns
        -------
        int32 [n]
            A number for each.

        Raises
        ------
        CapacityError
            If more than 2^31 - 1 ids are distinct.
        """
        ids = np.ascontiguousarray(ids, np.uint64)
        numbers = np.empty(len(ids), np.int32)
        done = 0
        while True:
            done, self.distinct = _number(ids, numbers, done, self._slots, self.distinct)
            if done == len(ids):
                return numbers
            if self.distinct >= _MOST:
                raise CapacityError(f"{_MOST:,} distinct block ids are the most a trace can hold: split it, or use larger blocks")
            factor = 4 if len(self._slots) < _SMALL else 2  # growing costs time, and a large table memory
            self._slots = _grown(self._slots, _table(factor * len(self._slots)))


def intern(ids: NDArray[np.uint64]) -> tuple[Ids, int]:
    """Number ids densely by first appearance; return the numbers, int32 [n], and how many are distinct.

    Parameters
    ----------
    ids : uint64 [n]
        In the order of access.

    Raises
    ------
    CapacityError
        If more than 2^31 - 1 ids are distinct.

    Examples
    --------
    >>> numbers, distinct = intern(np.array([7, 3, 7, 9], np.uint64))
    >>> numbers.tolist(), distinct
    ([0, 1, 0, 2], 3)
    """
    interner = Interner()
    return interner.add(ids), interner.distinct


def _table(slots: int) -> NDArray[np.uint64]:
    """Return an empty table [slots, 2] of (id, number + 1), its length a power of two; number 0 marks an empty slot."""
    return np.zeros((1 << max(4, (slots - 1).bit_length()), 2), np.uint64)


@numba.njit(nogil=True, cache=True)
def _home(key: Any, last: Any) -> Any:
    """Return the slot where the search for `key` begins; `last` is that of the table."""
    return np.uint64((((key ^ (key >> np.uint64(32))) * _MULTIPLIER) >> np.uint64(20)) & last)


@numba.njit(nogil=True, cache=True)
def _place(key: Any, slots: Any) -> Any:
    """Return the slot of `key`, or the empty one where it belongs."""
    last = np.uint64(len(slots) - 1)
    slot = _home(key, last)
    while slots[slot, 1] != 0 and slots[slot, 0] != key:
        slot = (slot + np.uint64(1)) & last
    return slot


@numba.njit(nogil=True, cache=True)
def _number(ids: Any, numbers: Any, first: Any, slots: Any, distinct: Any) -> Any:
    """Number ``ids[first:]`` until the table is half full; return how far it came and how many ids are distinct.

    Each group's home slots are read before any is looked at, so that their cache misses overlap.
    """
    most, last = min(len(slots) // 2, _MOST), np.uint64(len(slots) - 1)
    keys, found = np.empty(_GROUP, np.uint64), np.empty(_GROUP, np.uint64)
    for start in range(first, len(ids), _GROUP):
        count = min(_GROUP, len(ids) - start)
        for j in range(count):
            slot = _home(ids[start + j], last)
            keys[j], found[j] = slots[slot, 0], slots[slot, 1]
        for j in range(count):
            key, number = ids[start + j], found[j]
            if number == 0 or keys[j] != key:
                slot = _place(key, slots)
                number = slots[slot, 1]
                if number == 0:
                    if distinct >= most:
                        return start + j, distinct
                    distinct += 1
                    number = np.uint64(distinct)
                    slots[slot, 0], slots[slot, 1] = key, number
            numbers[start + j] = np.int32(number - np.uint64(1))
    return len(ids), distinct


@numba.njit(nogil=True, cache=True)
def _grown(old: Any, new: Any) -> Any:
    """Move every entry of `old` into the empty table `new`, and return that."""
    for i in range(len(old)):
        if old[i, 1] != 0:
            slot = _place(old[i, 0], new)
            new[slot, 0], new[slot, 1] = old[i, 0], old[i, 1]
    return new
