"""Exact top-k of each row of scores, in numba: bisect for the threshold, then emit.

Floats are ordered like their bits, taken as signed integers of which negative ones are turned around; the count of keys
above a threshold is one pass that LLVM vectorises, and as soon as few keys lie within the bracket, only those are
counted.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput

__all__ = ["top_indices", "top_mask"]

_njit: Any = numba.njit(nogil=True, cache=True)
_LOWEST: Final = -(2**31)


def top_indices(scores: NDArray[np.float32], count: int) -> Ids:
    """Return the indices of each row's largest scores, ascending; of equal scores the newest, i.e. the last, go first.

    Parameters
    ----------
    scores : float32 [rows, n]
        NaN counts as lowest of all.
    count : int
        How many of each row, 0 to n.

    Returns
    -------
    int32 [rows, count]
        Ascending indices.

    Raises
    ------
    BadInput
        `count` outside 0 to n.
    """
    rows, columns = scores.shape
    if not 0 <= count <= columns:
        raise BadInput(f"top_indices: {count} of {columns} scores a row; choose 0 to {columns}")
    chosen = np.empty((rows, count), np.int32)
    _top(np.ascontiguousarray(scores, np.float32), np.full(rows, count, np.int32), chosen)
    return chosen


def top_mask(scores: NDArray[np.float32], counts: Ids) -> NDArray[np.bool_]:
    """Mark each row's `counts` largest scores; as `top_indices`, with a count of its own for each row.

    Parameters
    ----------
    scores : float32 [rows, n]
        NaN counts as lowest of all.
    counts : int32 [rows]
        How many of each row, 0 to n.

    Returns
    -------
    bool [rows, n]
        Exactly ``counts[row]`` are set.

    Raises
    ------
    BadInput
        A count outside 0 to n.
    """
    rows, columns = scores.shape
    counts = np.ascontiguousarray(counts, np.int32)
    if counts.shape != (rows,) or counts.min(initial=0) < 0 or counts.max(initial=0) > columns:
        raise BadInput(f"top_mask: counts {counts.tolist()} for {rows} rows of {columns}; give one of 0 to {columns} a row")
    chosen = np.empty((rows, int(counts.max(initial=0))), np.int32)
    _top(np.ascontiguousarray(scores, np.float32), counts, chosen)
    mask = np.zeros((rows, columns), np.bool_)
    valid = np.arange(chosen.shape[1]) < counts[:, None]
    mask[np.nonzero(valid)[0], chosen[valid]] = True
    return mask


def _keys_of(scores: NDArray[np.float32], keys: NDArray[np.int32]) -> None:
    """Integers in the order of the scores; both zeros are one."""
    bits = scores.view(np.int32)
    for i in range(np.uint64(len(keys))):
        bit = bits[i]
        bit = np.int32(0) if bit == np.int32(_LOWEST) else bit
        key = bit ^ ((bit >> np.int32(31)) & np.int32(0x7FFFFFFF))
        keys[i] = key if scores[i] == scores[i] else np.int32(_LOWEST)


def _above_of(keys: NDArray[np.int32], count: int, least: int) -> int:
    """How many keys are at least `least`."""
    bound, found = np.int32(least), np.int32(0)
    for i in range(np.uint64(count)):
        found += np.int32(keys[i] >= bound)
    return int(found)


_keys, _above = _njit(_keys_of), _njit(_above_of)


def _bracket_of(keys: NDArray[np.int32], near: NDArray[np.int32], count: int) -> tuple[int, int, int]:
    """Bisect: (low, high, keys at least high), of which `count` lie above low, or low and high are neighbours."""
    low, high = int(keys.min()), int(keys.max()) + 1
    above_low, above_high, held, beyond = len(keys), 0, len(keys), 0
    gathered = False
    while high - low > 1 and above_low != count:
        middle = (low + high) >> 1
        above = beyond + _above(near if gathered else keys, held, middle)
        if above >= count:
            low, above_low = middle, above
        else:
            high, above_high = middle, above
        if (above_low - above_high) * 4 < held:
            source, kept = near if gathered else keys, 0
            for i in range(held):
                key = source[i]
                near[kept] = key
                kept += int((key >= low) & (key < high))
            gathered, held, beyond = True, kept, above_high
    return low, (low if above_low == count else high), (above_low if above_low == count else above_high)


_bracket = _njit(_bracket_of)


def _top_of(scores: NDArray[np.float32], counts: Ids, chosen: Ids) -> None:
    columns = scores.shape[1]
    keys, near = np.empty(columns, np.int32), np.empty(columns + 1, np.int32)
    spare = np.empty(columns + 1, np.int32)
    for row in range(len(scores)):
        count = counts[row]
        if count == 0:
            continue
        _keys(scores[row], keys)
        low, high, above = _bracket(keys, near, count)
        ties, place = count - above, count
        sure = np.int64(high)
        for i in range(columns - 1, -1, -1):
            key = np.int64(keys[i])
            tie = (key == low) & (key < sure) & (ties > 0)
            ties -= tie
            spare[place] = i
            place -= int((key >= sure) | tie)
        chosen[row, :count] = spare[1 : count + 1]


_top = _njit(_top_of)
