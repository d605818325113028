"""numba's loops over blocks around the vector code of `blocks`, for one shape."""

from __future__ import annotations

import functools
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

__all__ = ["Compiled", "compiled", "inlined"]

Floats = NDArray[np.float32]
Compiled = tuple[Callable[..., bool], Callable[..., bool], Callable[..., bool]]
"""Partials, attend, fold; False if an index lies outside its range, and nothing was written."""

_njit = numba.njit(nogil=True, error_model="numpy")


@functools.cache
def compiled(shape: Shape) -> Compiled:
    """Return the loops of a shape; numba compiles each at its first call."""
    return _njit(_partials_loop(shape)), _njit(_attend_loop(shape)), _njit(_fold_loop(shape))


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


def _attend_block(code: BlockCode, *arguments: Value) -> None:
    """Attend to a block and fold it; keep its maxima and sums, `stride` bytes apart from head to head."""
    block, ahead, query, tokens, softcap, work, highs, totals, stride = arguments
    found = code.probabilities(block, ahead, query, tokens, softcap, work)
    code.keep(found, highs, totals, stride)
    for index, (high, total) in enumerate(found):
        code.weigh(index, high, total, work)
    code.values(block, ahead, tokens, work, None)


def _partial_block(code: BlockCode, *arguments: Value) -> None:
    """Attend to a block and keep its partial."""
    block, ahead, query, tokens, softcap, work, highs, totals, acc = arguments
    code.keep(code.probabilities(block, ahead, query, tokens, softcap, work), highs, totals, None)
    code.values(block, ahead, tokens, work, acc)


def _partials_loop(shape: Shape) -> Callable[..., bool]:
    block, work_floats = inlined(BlockCode, shape, _partial_block), shape.layout["end"] // 4 + 16
    group, asked_bytes, acc_bytes = shape.group, 4 * shape.group * shape.k_dim, 4 * shape.group * shape.v_dim

    def loop(
        query: Floats, memory: NDArray[np.uint8], slots: Ids, heads: Ids, rows: Ids, m: Floats, total: Floats, acc: Floats,
        tokens: Ids, softcap: int,
    ) -> bool:  # fmt: skip
        fine = _within(slots, len(memory)) and _within(heads, len(query) // group) and _within(rows, len(m))
        if not (fine and _counts(tokens)):
            return False
        work, last = np.empty(work_floats, np.float32), len(slots) - 1
        work_at, base, size = (work.ctypes.data + 63) & -64, memory.ctypes.data, memory.shape[1]
        for i in range(len(slots)):
            here, ahead = base + slots[i] * size, base + slots[min(i + 1, last)] * size
            asked, row = query.ctypes.data + heads[i] * asked_bytes, rows[i] * 4 * group
            valid = tokens[i] if len(tokens) else TOKENS
            kept = m.ctypes.data + row, total.ctypes.data + row, acc.ctypes.data + rows[i] * acc_bytes
            block((here, ahead, asked, valid, softcap, work_at, kept[0], kept[1], kept[2]))
        return True

    return loop


def _attend_loop(shape: Shape) -> Callable[..., bool]:
    written, work_floats = functools.partial(inlined, BlockCode, shape), shape.layout["end"] // 4 + 16
    block, clear, shares = map(written, (_attend_block, BlockCode.clear, BlockCode.shares))
    finish = written(functools.partial(BlockCode.finish, natural=False))
    group, asked_bytes, acc_bytes = shape.group, 4 * shape.group * shape.k_dim, 4 * shape.group * shape.v_dim

    def loop(
        query: Floats, memory: NDArray[np.uint8], slots: Ids, starts: Ids, tokens: Ids, softcap: int, output: Floats, mass: Floats
    ) -> bool:
        if not (_within(slots, len(memory)) and _counts(tokens)):
            return False
        work, ends, kept, last = (
            np.empty(work_floats, np.float32),
            np.empty((2, group), np.float32),
            _room(starts, group),
            len(slots) - 1,
        )
        work_at, base, size = (work.ctypes.data + 63) & -64, memory.ctypes.data, memory.shape[1]
        tops, scales, stride = ends.ctypes.data, ends.ctypes.data + 4 * group, 4 * kept.shape[2]
        for head in range(len(starts) - 1):
            clear((work_at,))
            first, after = starts[head], starts[head + 1]
            highs, totals = kept.ctypes.data - 4 * first, kept.ctypes.data + group * stride - 4 * first
            asked = query.ctypes.data + head * asked_bytes
            for i in range(first, after):
                here, ahead = base + slots[i] * size, base + slots[min(i + 1, last)] * size
                valid = tokens[i] if len(tokens) else TOKENS
                block((here, ahead, asked, valid, softcap, work_at, highs + 4 * i, totals + 4 * i, stride))
            finish((work_at, output.ctypes.data + head * acc_bytes, tops, scales))
            for i in range(first, after, 8):
                shares((highs + 4 * i, totals + 4 * i, stride, tops, scales, mass.ctypes.data + 4 * i))
        return True

    return loop


def _fold_loop(shape: Shape) -> Callable[..., bool]:
    written, work_floats = functools.partial(inlined, BlockCode, shape), shape.layout["end"] // 4 + 16
    fold, clear, shares = map(written, (BlockCode.fold, BlockCode.clear, BlockCode.shares))
    finish = written(functools.partial(BlockCode.finish, natural=True))
    group, acc_bytes = shape.group, 4 * shape.group * shape.v_dim

    def loop(m: Floats, total: Floats, acc: Floats, rows: Ids, starts: Ids, output: Floats, mass: Floats) -> bool:
        if not _within(rows, len(m)):
            return False
        work, ends, kept = np.empty(work_floats, np.float32), np.empty((2, group), np.float32), _room(starts, group)
        work_at, tops, scales = (work.ctypes.data + 63) & -64, ends.ctypes.data, ends.ctypes.data + 4 * group
        stride = 4 * kept.shape[2]
        for head in range(len(starts) - 1):
            clear((work_at,))
            first, after = starts[head], starts[head + 1]
            highs, totals = kept.ctypes.data - 4 * first, kept.ctypes.data + group * stride - 4 * first
            for i in range(first, after):
                row = rows[i] * 4 * group
                fold((m.ctypes.data + row, total.ctypes.data + row, acc.ctypes.data + rows[i] * acc_bytes, work_at))
                for member in range(group):
                    kept[0, member, i - first], kept[1, member, i - first] = m[rows[i], member], total[rows[i], member]
            finish((work_at, output.ctypes.data + head * acc_bytes, tops, scales))
            for i in range(first, after, 8):
                shares((highs + 4 * i, totals + 4 * i, stride, tops, scales, mass.ctypes.data + 4 * i))
        return True

    return loop


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
    """Room for maxima and sums of one KV head's blocks, [2, group, blocks], in eights."""
    most = 0
    for head in range(len(starts) - 1):
        most = max(most, starts[head + 1] - starts[head])
    return np.empty((2, group, (most + 7) // 8 * 8), np.float32)


_within, _counts, _room = _njit(_within_range), _njit(_counts_right), _njit(_room_of)
