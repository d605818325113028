"""The contract of `DecodeKernel` in plain numba loops: any shape, one number after the other."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.live.kernels.partials import Partials, joined
from kvpager.live.kernels.shape import AnyShape

__all__ = ["PlainKernel"]


class PlainKernel(AnyShape):
    """Attention of one query token to blocks in slots, for the shapes that `DecodeKernel` does not take.

    Every sum is taken in one order, so no result depends on what else was computed in the same call.
    """

    def partials(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, heads: Ids, rows: Ids, out: Partials,
        tokens: Ids | None = None, softcap: float = 0.0, keys: Ids | None = None,
    ) -> None:  # fmt: skip
        """Attend to single blocks, in any order; see `DecodeKernel.partials`."""
        memory, slots = joined(memory, slots, keys)
        units: NDArray[Any] = memory[slots].view(np.float32 if self.element == "float32" else np.uint16)
        if self.element == "bfloat16":
            units = (units.astype(np.uint32) << 16).view(np.float32)
        counts = np.full(len(slots), self.block_size, np.int32) if tokens is None else tokens
        _partials(query, units, heads, rows, *out, counts, self.block_size, self.group, softcap)

    def fold(self, partials: Partials, rows: Ids, starts: Ids) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Fold partials; see `DecodeKernel.fold`."""
        output = np.zeros((self.kv_heads * self.group, self.v_dim), np.float32)
        mass = np.empty(len(rows), np.float32)
        _fold(*partials, rows, starts, output, mass)
        return output, mass

    def attend(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, starts: Ids, tokens: Ids | None = None,
        softcap: float = 0.0, keys: Ids | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:  # fmt: skip
        """Do both; see `DecodeKernel.attend`."""
        out = Partials.empty(len(slots), self.group, self.v_dim)
        rows = np.arange(len(slots), dtype=np.int32)
        heads = np.repeat(np.arange(self.kv_heads, dtype=np.int32), np.diff(starts))
        self.partials(query, memory, slots, heads, rows, out, tokens, softcap, keys)
        return self.fold(out, rows, starts)


@numba.njit(nogil=True, cache=True)
def _partials(
    query: Any, units: Any, heads: Any, rows: Any, top: Any, total: Any, acc: Any, tokens: Any, size: Any, group: Any,
    softcap: Any,
) -> None:  # fmt: skip
    k_dim, v_dim = query.shape[1], acc.shape[2]
    logits = np.empty(size, np.float32)
    for item in range(len(units)):
        unit, row = units[item], rows[item]
        for member in range(group):
            asked, high = query[heads[item] * group + member], np.float32(-np.inf)
            for token in range(tokens[item]):
                logit = np.float32(0.0)
                for channel in range(k_dim):
                    logit += asked[channel] * unit[channel * size + token]
                if softcap > 0.0:
                    logit = np.float32(softcap * math.tanh(logit / softcap))
                logits[token] = logit
                high = max(high, logit)
            summed = np.float32(0.0)
            acc[row, member, :] = 0.0
            for token in range(tokens[item]):
                weight = np.float32(math.exp(logits[token] - high))
                summed += weight
                for channel in range(v_dim):
                    acc[row, member, channel] += weight * unit[k_dim * size + token * v_dim + channel]
            top[row, member], total[row, member] = high, summed


@numba.njit(nogil=True, cache=True)
def _fold(top: Any, total: Any, acc: Any, rows: Any, starts: Any, output: Any, mass: Any) -> None:
    group, v_dim = acc.shape[1:]
    running = np.empty(v_dim, np.float32)
    mass[:] = 0.0
    for head in range(len(starts) - 1):
        for member in range(group):
            high, summed = np.float32(-np.inf), 0.0
            running[:] = 0.0
            for place in range(starts[head], starts[head + 1]):
                row = rows[place]
                new = max(high, top[row, member])
                old, fresh = np.float32(math.exp(high - new)), np.float32(math.exp(top[row, member] - new))
                summed = summed * old + total[row, member] * fresh
                for channel in range(v_dim):
                    running[channel] = running[channel] * old + acc[row, member, channel] * fresh
                high = new
            if summed > 0.0:
                for channel in range(v_dim):
                    output[head * group + member, channel] = running[channel] / summed
                for place in range(starts[head], starts[head + 1]):
                    row = rows[place]
                    mass[place] += total[row, member] * math.exp(top[row, member] - high) / summed / group
