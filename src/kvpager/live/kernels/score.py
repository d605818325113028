"""Scores of all blocks of a layer by their key summaries: bounds, means, or an outlier and the mean of the rest.

Summaries are arrays ``[kv_heads, rows, dim]``, a block's row beside the next one's, the last axis contiguous: float32,
bfloat16 as uint16, or linear codes (uint8) that stand for ``low + step * code``, ``low`` and ``step`` being float32
``[kv_heads, dim]``. Two vectors in four bits share an array of bytes, the first in the low halves. A channel's step is
multiplied into the query beforehand. `rows` says which rows are scored: all, a slice, or int32 ``[n]`` in any order;
a score does not depend on what else is scored, up to the softmax over what is. `dim` is a multiple of 8.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.live.kernels.loops import inlined
from kvpager.live.kernels.scoring import ScoreCode, ScoreShape

__all__ = ["Linear", "score_bounds", "score_means", "score_outlier_mean"]

Floats = NDArray[np.float32]
Linear = tuple[Floats, Floats]
"""What codes stand for: low and step, float32 [kv_heads, dim] each."""
Rows = Ids | slice | None

_KINDS = {np.dtype(np.float32): "float32", np.dtype(np.uint16): "bfloat16", np.dtype(np.uint8): "uint8"}


def score_bounds(
    query: Floats,
    maxima: NDArray[Any],
    minima: NDArray[Any],
    rows: Rows = None,
    codes: tuple[Linear, Linear] | None = None,
    *,
    softmax: bool = False,
) -> Floats:
    """Score blocks by the upper bound of a key's logit, ``sum_c max(q_c * max_c, q_c * min_c)``.

    Parameters
    ----------
    query : float32 [kv_heads, group, dim]
        Scaled.
    maxima, minima : float32, uint16 or uint8 [kv_heads, rows, dim]
        Of each channel of a block's keys.
    rows : slice or int32 [n], optional
        Which are scored; default all.
    codes : tuple of Linear, optional
        What the codes of maxima and of minima stand for, if they are uint8.
    softmax : bool
        The mean over the group of each head's softmax over the blocks, instead of the mean bound.

    Returns
    -------
    float32 [kv_heads, n]
        Scores.
    """
    halves = np.maximum(query, 0), np.minimum(query, 0)
    if not softmax:
        halves = halves[0].mean(1, keepdims=True), halves[1].mean(1, keepdims=True)
    return _scores(halves, (maxima, minima), rows, codes, joined=True, weights=(1.0,) if softmax else ())


def score_means(query: Floats, means: NDArray[Any], rows: Rows = None, code: Linear | None = None) -> Floats:
    """Score blocks by the mass that each would draw if all its keys were their mean.

    Parameters
    ----------
    query : float32 [kv_heads, group, dim]
        Scaled.
    means : float32, uint16 or uint8 [kv_heads, rows, dim]
        Of each block's keys.
    rows : slice or int32 [n], optional
        Which are scored; default all.
    code : Linear, optional
        What the codes stand for, if they are uint8.

    Returns
    -------
    float32 [kv_heads, n]
        Softmax over the blocks, mean over the group.
    """
    return _scores((query,), (means,), rows, None if code is None else (code,), weights=(1.0,))


def score_outlier_mean(
    query: Floats,
    packed: NDArray[np.uint8] | tuple[NDArray[Any], NDArray[Any]],
    codes: tuple[Linear, Linear] | None,
    others: int,
    rows: Rows = None,
) -> Floats:
    """Score blocks by the mass of an outlier key and of `others` keys that all are their mean.

    Parameters
    ----------
    query : float32 [kv_heads, group, dim]
        Scaled.
    packed : uint8 [kv_heads, rows, dim], or a pair of arrays
        Codes of the outlier in the low halves, of the mean in the high ones; or both as arrays of their own.
    codes : tuple of Linear, optional
        What the codes of the outlier and of the mean stand for; None for float32 and bfloat16.
    others : int
        Keys behind the mean, e.g. ``block_size - 1``.
    rows : slice or int32 [n], optional
        Which are scored; default all.

    Returns
    -------
    float32 [kv_heads, n]
        Softmax over the blocks of ``logaddexp(q · outlier, q · mean + log(others))``, mean over the group.
    """
    arrays = packed if isinstance(packed, tuple) else (packed,)
    return _scores((query, query), arrays, rows, codes, weights=(1.0, float(others)))


def _scores(
    queries: tuple[Floats, ...],
    arrays: tuple[NDArray[Any], ...],
    rows: Rows,
    codes: tuple[Linear, ...] | None,
    *,
    joined: bool = False,
    weights: tuple[float, ...],
) -> Floats:
    """Multiply query `i` with vector `i` of each row, add up if `joined`; softmax with weights, or none at all."""
    heads, group, dim = queries[0].shape
    array, parts = arrays[0], len(queries)
    kind = "nibbles" if len(arrays) < parts else _KINDS.get(array.dtype)
    fits = dim % 8 == 0 and kind is not None and (kind in ("uint8", "nibbles")) == (codes is not None)
    for other in arrays:
        fits &= other.shape == (heads, array.shape[1], dim) and other.dtype == array.dtype and other.strides == array.strides
        if not fits or other.strides[1:] != (dim * other.itemsize, other.itemsize):
            raise BadInput(
                f"key summaries {other.dtype} {other.shape} do not fit queries {queries[0].shape}: float32, uint16, or uint8 "
                "with its codes, [kv_heads, rows, dim], rows beside each other, dim a multiple of 8"
            )
    index = _indices(rows, array.shape[1])
    asked = np.stack(queries, 1).astype(np.float32, copy=False)  # [heads, parts, group, dim]
    base = np.zeros(asked.shape[:-1], np.float32)
    if codes is not None:
        low, step = (np.stack([code[which] for code in codes], 1)[:, :, None] for which in (0, 1))
        base, asked = (asked * low).sum(-1, dtype=np.float32), asked * step
    if joined:
        base = base.sum(1, keepdims=True)
    result = np.empty((heads, len(index) + 8), np.float32)
    loop = _compiled(ScoreShape(kind or "", parts, joined, group, dim, weights))
    second = arrays[1] if len(arrays) > 1 else array
    loop(
        np.ascontiguousarray(asked), np.ascontiguousarray(base), array.ctypes.data, second.ctypes.data, array.strides[0], index,
        result,
    )  # fmt: skip
    return result[:, : len(index)]


def _indices(rows: Rows, count: int) -> Ids:
    if rows is None or isinstance(rows, slice):
        return np.arange(*(rows or slice(None)).indices(count), dtype=np.int32)
    index = np.ascontiguousarray(rows, np.int32)
    if len(index) and not (int(index.min()) >= 0 and int(index.max()) < count):
        raise BadInput(f"key summaries: rows {index.min()} to {index.max()} of {count}")
    return index


@functools.cache
def _compiled(shape: ScoreShape) -> Callable[..., None]:
    """Return the loop over heads and rows; numba compiles it at its first call."""
    products, finish = inlined(ScoreCode, shape, ScoreCode.products), inlined(ScoreCode, shape, ScoreCode.finish)
    step, outputs, asked_bytes = shape.rows, shape.outputs, 4 * shape.parts * shape.group * shape.dim

    def loop(asked: Floats, base: Floats, first: int, second: int, head_bytes: int, index: Ids, result: Floats) -> None:
        count = len(index)
        if count == 0:
            return
        room = (count + 15) // 8 * 8
        logits, order = np.empty((outputs, room), np.float32), np.empty(count + 16, np.int32)
        order[:count], order[count:] = index, index[count - 1]
        for head in range(len(asked)):
            query, zero = asked.ctypes.data + head * asked_bytes, base.ctypes.data + head * 4 * outputs
            for i in range(0, count, step):
                places = first + head * head_bytes, second + head * head_bytes, order.ctypes.data + 4 * i
                products((query, zero, places[0], places[1], places[2], logits.ctypes.data + 4 * i, 4 * room))
            logits[:, count:] = np.float32(-3.0e38)
            finish((logits.ctypes.data, 4 * room, (count + 7) // 8 * 8, result.ctypes.data + head * result.shape[1] * 4))

    made: Callable[..., None] = numba.njit(nogil=True, error_model="numpy")(loop)
    return made
