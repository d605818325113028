"""numba's loops over blocks around the vector code of `blocks`, for one shape."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.live.kernels.blocks import TOKENS, BlockCode, Shape
from kvpager.live.kernels.ir import Value

__all__ = ["compiled", "compiled_shares", "inlined"]

Floats = NDArray[np.float32]
Asks = tuple[Floats, NDArray[np.uint8], Ids, Ids, Ids, int]
"""Query, memory, slots, slots of keys (none = beside their values), tokens of each block (none = all), bits of the softcap."""

_njit = numba.njit(nogil=True, error_model="numpy")


def inlined(kind: Callable[..., Any], shape: Any, write: Callable[..., None]) -> Any:
    """Make vector code, a method of `kind`, callable from numba, with one tuple of addresses and integers."""

    def made(context: Any, arguments: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            unpacked = cgutils.unpack_tuple(builder, values[0])  # type: ignore[no-untyped-call]
            parts = zip(unpacked, signature.args[0].types, strict=True)
            write(kind(builder, shape), *(context.cast(builder, part, kind, types.intp) for part, kind in parts))
            return context.get_dummy_value()

        return types.void(arguments), code

    return intrinsic(made)


def _block(code: BlockCode, *arguments: Value) -> None:
    """Attend to a block; store its partial."""
    key, key_ahead, value, value_ahead, query, tokens, softcap, work, high, total, acc = arguments
    code.keep(code.probabilities(key, key_ahead, query, tokens, softcap, work), high, total)
    code.values(value, value_ahead, tokens, work, acc)


def _keys(code: BlockCode, *arguments: Value) -> None:
    """Store the maxima and sums of a block, by its keys alone."""
    key, ahead, query, tokens, softcap, work, high, total = arguments
    code.keep(code.probabilities(key, ahead, query, tokens, softcap, work), high, total)


@functools.cache
def compiled(shape: Shape) -> Callable[..., bool]:
    """Return the loop of a shape: False if an index lies outside its range, and then nothing was written.

    One loop does all: `attend` computes partials and folds them, `partials` and `fold` do one of both. The bits are the
    same because the code is, and LLVM's seconds are spent once.
    """
    written, work_floats = functools.partial(inlined, BlockCode, shape), shape.layout["end"] // 4 + 16
    block, fold, clear, finish, shares = map(
        written, (_block, BlockCode.fold, BlockCode.clear, BlockCode.finish, BlockCode.shares)
    )
    group, asked_bytes, acc_bytes = shape.group, 4 * shape.group * shape.k_dim, 4 * shape.group * shape.v_dim
    key_bytes = TOKENS * shape.k_dim * shape.element_bytes

    def loop(
        asks: Asks, starts: Ids, heads: Ids, rows: Ids, partials: tuple[Floats, Floats, Floats], results: tuple[Floats, Floats]
    ) -> bool:
        query, memory, slots, keys, tokens, softcap = asks
        m, total, acc = partials
        output, mass = results
        fine = _within(slots, len(memory)) and _counts(tokens) and _within(rows, len(m))
        if not (fine and _within(heads, len(query) // group) and _within(keys, len(memory))):
            return False
        work, ends, kept = np.empty(work_floats, np.float32), np.empty(2 * group, np.float32), _room(starts, group)
        work_at, base, size, last = (work.ctypes.data + 63) & -64, memory.ctypes.data, memory.shape[1], len(slots) - 1
        beside = base - key_bytes if len(keys) else base  # from where values are found as if keys stood before them
        places = keys if len(keys) else slots
        tops, scales, stride = ends.ctypes.data, ends.ctypes.data + 4 * group, 4 * kept.shape[2]
        for head in range(len(starts) - 1):
            first, after = starts[head], starts[head + 1]
            highs, totals = kept.ctypes.data - 4 * first, kept.ctypes.data + stride * group - 4 * first
            clear((work_at,))
            for i in range(first, after):
                row = rows[i] if len(rows) else 0
                small, acc_at = row * 4 * group, acc.ctypes.data + row * acc_bytes
                m_at, total_at = m.ctypes.data + small, total.ctypes.data + small
                if len(slots):
                    soon = min(i + 1, last)
                    key, key_ahead = base + places[i] * size, base + places[soon] * size
                    value, value_ahead = beside + slots[i] * size, beside + slots[soon] * size
                    asked = query.ctypes.data + (heads[i] if len(heads) else head) * asked_bytes
                    valid = tokens[i] if len(tokens) else TOKENS
                    block((key, key_ahead, value, value_ahead, asked, valid, softcap, work_at, m_at, total_at, acc_at))
                if len(output):
                    fold((m_at, total_at, acc_at, work_at, highs + 4 * i, totals + 4 * i, stride))
            if len(output):
                finish((work_at, output.ctypes.data + head * acc_bytes, tops, scales))
                for i in range(first, after, 8):
                    shares((highs + 4 * i, totals + 4 * i, stride, tops, scales, mass.ctypes.data + 4 * i))
        return len(work) + len(ends) > 0  # here, since numba frees an array behind its last use

    return _njit(loop)


@functools.cache
def compiled_shares(shape: Shape) -> Callable[..., bool]:
    """Return the loop that needs keys alone: each block's share of the probability, mean over the group."""
    written, work_floats = functools.partial(inlined, BlockCode, shape), shape.layout["end"] // 4 + 16
    block, shares = written(_keys), written(BlockCode.shares)
    group, asked_bytes = shape.group, 4 * shape.group * shape.k_dim

    def loop(query: Floats, memory: NDArray[np.uint8], slots: Ids, starts: Ids, softcap: int, mass: Floats) -> bool:
        if not _within(slots, len(memory)):
            return False
        work, kept = np.empty(work_floats, np.float32), _room(starts, group)
        found, ends = np.empty((2, group), np.float32), np.empty((2, group), np.float32)
        work_at, base, size, last = (work.ctypes.data + 63) & -64, memory.ctypes.data, memory.shape[1], len(slots) - 1
        high_at, total_at, stride = found.ctypes.data, found.ctypes.data + 4 * group, 4 * kept.shape[2]
        for head in range(len(starts) - 1):
            first, after = starts[head], starts[head + 1]
            asked = query.ctypes.data + head * asked_bytes
            for i in range(first, after):
                here, ahead = base + slots[i] * size, base + slots[min(i + 1, last)] * size
                block((here, ahead, asked, TOKENS, softcap, work_at, high_at, total_at))
                kept[:, :, i - first] = found
            _sums(kept, after - first, ends)
            tops, scales = ends.ctypes.data, ends.ctypes.data + 4 * group
            for i in range(0, after - first, 8):
                highs, totals = kept.ctypes.data + 4 * i, kept.ctypes.data + stride * group + 4 * i
                shares((highs, totals, stride, tops, scales, mass.ctypes.data + 4 * (first + i)))
        return len(work) + len(found) > 0  # here, since numba frees an array behind its last use

    return _njit(loop)


def _within_range(values: Ids, stop: int) -> bool:
    fine = True
    for value in values:
        fine &= (value >= 0) & (value < stop)
    return fine


def _counts_right(tokens: Ids) -> bool:
    fine = True
    for value in tokens:
        fine &= (value >= 1) & (value <= TOKENS)
    return fine


def _room_of(starts: Ids, group: int) -> Floats:
    """Room for maxima and sums of one KV head's blocks, [2, group, blocks in eights]."""
    most = 0
    for head in range(len(starts) - 1):
        most = max(most, starts[head + 1] - starts[head])
    return np.empty((2, group, (most + 7) // 8 * 8), np.float32)


def _sums_of(kept: Floats, count: int, ends: Floats) -> None:
    """Write the largest maximum of each query head, and 1 / (the sum over its blocks * group)."""
    group = kept.shape[1]
    for head in range(group):
        highs, totals = kept[0, head, :count], kept[1, head, :count]
        top, total = np.float32(-3.0e38), 0.0
        for high in highs:
            top = max(top, high)
        for i in range(count):
            total += totals[i] * math.exp(highs[i] - top)
        ends[0, head], ends[1, head] = top, np.float32(1.0 / (total * group)) if total > 0.0 else np.float32(0.0)


_kept = numba.njit(nogil=True, cache=True)
_within, _counts, _room, _sums = _kept(_within_range), _kept(_counts_right), _kept(_room_of), _kept(_sums_of)
