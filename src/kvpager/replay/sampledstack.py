"""The sampled blocks of an LRU stack, and how deep in the whole stack each access to one of them finds it.

What stands above a block is what was touched since its own last touch. Blocks that became known since are counted, sampled or
not, because ids are numbered by first appearance; of the older ones the sampled are counted, and the cold among them scaled up.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.traces.requests import RequestTrace

__all__ = ["BINS", "HOT", "PARTS", "SampledStack", "bin_edges"]

PARTS: Final = 16
"""Disjoint parts of the cold blocks in the sample."""
HOT: Final = PARTS
"""In the place of a part: a hot block."""
BINS: Final = 32 * 64
"""Of depths, 64 to each doubling; a whole depth below 128 has a bin of its own."""

_COLD: Final = np.int64(1) << 32  # one cold block in a packed count; a hot one counts 1

Floats = NDArray[np.float64]


def bin_edges() -> Floats:
    """Return where each bin of depths begins, and the last one ends, float64 [BINS + 1]."""
    bins = np.arange(BINS + 1)
    return 2.0 ** (bins // 64) * (1 + bins % 64 / 64)


class SampledStack:
    """What was found so far; `found`, `counted` and `blur` say it.

    Parameters
    ----------
    slots : int32 [distinct]
        Each block's number in the sample, in the order of ids; -1 for none.
    part : int8 [sampled]
        Part of each sampled block; `HOT` of those that are sampled for sure.
    whole : bool
        Whether a request looks up all its blocks before it touches them, the last one first.

    Attributes
    ----------
    found : float64 [2, PARTS + 1, BINS]
        Accesses to sampled blocks, and their tokens, by part and depth.
    counted : int64 [4]
        Accesses, and their tokens; those to cold blocks that are not the block's first, and their tokens.
    """

    def __init__(self, slots: NDArray[np.int32], part: NDArray[np.int8], whole: bool) -> None:
        sampled, cold = len(part), int(np.count_nonzero(part != HOT))
        size = 1 << (2 * sampled - 1).bit_length()
        self._slots, self._part, self._whole = slots, part, whole
        self._scale = (len(slots) - sampled + cold) / cold  # cold blocks for which a sampled one stands
        self.found = np.zeros((2, PARTS + 1, BINS))
        self.counted = np.zeros(4, np.int64)
        self._old = np.zeros((2, BINS))  # accesses, and old cold blocks of the sample above them
        self._where, self._ids = np.zeros(sampled, np.int32), np.zeros(sampled, np.int64)
        self._born = np.zeros(sampled, np.int64)
        self._who, self._tree = np.full(size + 1, -1, np.int32), np.zeros(size + 1, np.int64)
        self._now = np.zeros(4, np.int64)  # touches, blocks known, sampled blocks known, sampled blocks in the stack

    @property
    def known(self) -> int:
        """Distinct blocks so far."""
        return int(self._now[1])

    def add(self, piece: RequestTrace, first: int) -> None:
        """Replay a piece, of which the requests from number `first` in it on count."""
        left = piece.input_tokens - piece.block_size * (np.diff(piece.starts) - 1)
        last_tokens = np.minimum(left, piece.block_size)
        _replay(
            piece.blocks, piece.starts, last_tokens, piece.block_size, first, self._whole, self._slots, self._part, self._scale,
            self._where, self._ids, self._born, self._who, self._tree, self._now, self.found, self._old, self.counted,
        )  # fmt: skip

    def blur(self) -> Floats:
        """Standard error of a depth, in blocks, by depth, float64 [BINS].

        It is that of the number of old cold blocks above, of which one is taken to be found at least: none found in the sample
        does not mean that there is none.
        """
        near = np.ones(65)
        accesses, old = (np.convolve(one, near, "same") for one in self._old)
        error: Floats = np.sqrt((old / np.maximum(accesses, 1) + 1) * (1 - 1 / self._scale)) * self._scale
        return error


@numba.njit(nogil=True, cache=True)
def _replay(
    blocks: Any, starts: Any, last_tokens: Any, block_size: Any, first: Any, whole: Any, slots: Any, part: Any, scale: Any,
    where: Any, ids: Any, born: Any, who: Any, tree: Any, now: Any, found: Any, old: Any, counted: Any,
) -> None:  # fmt: skip
    """Look up and touch: a request at a time, or a block at a time unless `whole`.

    `where` is a sampled block's last touch, from 1; `ids` and `born` tell how many blocks, and sampled ones, were known then.
    Sampled ones are packed: cold ones in the upper half.
    """
    for request in range(len(starts) - 1):
        at, end = starts[request], starts[request + 1]
        while at < end:
            behind = end if whole else at + 1
            known, sampled = now[1], now[2]
            for place in range(at, behind):
                block, slot = blocks[place], slots[blocks[place]]
                tokens = last_tokens[request] if place == end - 1 else block_size
                cold = slot < 0 or part[slot] != HOT
                if request >= first:
                    counted[0] += 1
                    counted[1] += tokens
                    if block < now[1] and cold:
                        counted[2] += 1
                        counted[3] += tokens
                if block >= now[1]:
                    now[1] = block + 1
                    if slot >= 0:
                        now[2] += _COLD if cold else 1
                elif slot >= 0 and request >= first:
                    above = now[3] - _upto(tree, where[slot]) - (sampled - born[slot])
                    depth = np.ceil(1 + known - ids[slot] + (above & (_COLD - 1)) + (above >> 32) * scale)
                    column = (np.float64(depth).view(np.int64) >> 46) - (1023 << 6)
                    found[0, part[slot], column] += 1
                    found[1, part[slot], column] += tokens
                    old[0, column] += 1
                    old[1, column] += above >> 32
            for place in range(behind - 1, at - 1, -1):
                slot = slots[blocks[place]]
                if slot >= 0:
                    _touch(slot, part, where, who, tree, now)
                    ids[slot], born[slot] = now[1], now[2]
            at = behind


@numba.njit(nogil=True, cache=True)
def _touch(slot: Any, part: Any, where: Any, who: Any, tree: Any, now: Any) -> None:
    size = len(tree) - 1
    if now[0] == size:
        _compact(part, where, who, tree, now)
    one = np.int64(1) if part[slot] == HOT else _COLD
    if where[slot]:
        who[where[slot]] = -1
        _add(tree, where[slot], -one, size)
    else:
        now[3] += one
    now[0] += 1
    where[slot], who[now[0]] = now[0], slot
    _add(tree, now[0], one, size)


@numba.njit(nogil=True, cache=True)
def _compact(part: Any, where: Any, who: Any, tree: Any, now: Any) -> None:
    """Number the touches anew that are the last of their blocks."""
    size, kept = len(tree) - 1, 0
    tree[:] = 0
    for touch in range(1, size + 1):
        slot = who[touch]
        who[touch] = -1
        if slot >= 0:
            kept += 1
            who[kept], where[slot] = slot, kept
            tree[kept] = 1 if part[slot] == HOT else _COLD
    for touch in range(1, size + 1):
        above = touch + (touch & -touch)
        if above <= size:
            tree[above] += tree[touch]
    now[0] = kept


@numba.njit(inline="always")
def _upto(tree: Any, place: Any) -> Any:
    total = np.int64(0)
    while place > 0:
        total += tree[place]
        place &= place - 1
    return total


@numba.njit(inline="always")
def _add(tree: Any, place: Any, change: Any, size: Any) -> None:
    while place <= size:
        tree[place] += change
        place += place & -place
