"""The contract of `DecodeKernel` in plain torch: any block size, dimensions and device. Slow, and obvious.

Sums run over halves of zero-padded powers of two and exp is a polynomial, so every element comes from additions and
multiplications that are rounded one by one: no result depends on what else was computed in the same call. A library's
matrix product or reduction does not promise that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from kvpager.live.kernels.partials import Partials
from kvpager.live.kernels.shape import AnyShape

__all__ = ["ReferenceKernel"]

_GROUP_BLOCKS: Final = 64
"""Blocks of a KV head that are folded at once; part of the arithmetic, so it never changes with the sizes."""
_SLICE_PRODUCTS: Final = 1 << 21
_LOWEST: Final = -3.0e38
_TAIL: Final = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_Parts = tuple[Tensor, Tensor, Tensor]
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ReferenceKernel(AnyShape):
    """Attention of one query token to blocks in slots.

    `memory` is a NumPy array, or a tensor on any device, where everything is computed then. Other arrays come as either;
    results are tensors on that device if `query` is a tensor, else NumPy arrays.
    """

    def partials(
        self,
        query: Any,
        memory: Any,
        slots: Any,
        heads: Any,
        rows: Any,
        out: Partials,
        tokens: Any | None = None,
        softcap: float = 0.0,
        keys: Any | None = None,
    ) -> None:
        """Attend to single blocks, in any order; see `DecodeKernel.partials`."""
        where = _tensor(memory)
        units, places = _joined(where, slots, keys)
        found = self._blocks(_on(query, where), units, places, _on(heads, where), _optional(tokens, where), softcap)
        place: Any
        for place, values in zip(out, found, strict=True):
            if isinstance(place, Tensor):
                place[_on(rows, place).long()] = _on(values, place)
            else:
                place[rows] = values.cpu().numpy()

    def fold(self, partials: Partials, rows: Any, starts: Any) -> tuple[Any, Any]:
        """Fold partials; see `DecodeKernel.fold`."""
        m, total, acc = map(_tensor, partials)
        order = _on(rows, m)

        def part(items: Tensor) -> _Parts:
            chosen = order[items]
            return m[chosen], total[chosen], acc[chosen]

        return _given(*self._fold(part, _on(starts, m)), partials.m)

    def attend(
        self, query: Any, memory: Any, slots: Any, starts: Any, tokens: Any | None = None, softcap: float = 0.0,
        keys: Any | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attend to blocks that are all at hand, and fold them; see `DecodeKernel.attend`."""
        where = _tensor(memory)
        asked, edges, counts = _on(query, where), _on(starts, where), _optional(tokens, where)
        units, places = _joined(where, slots, keys)
        heads = torch.repeat_interleave(edges.diff())

        def part(items: Tensor) -> _Parts:
            valid = None if counts is None else counts[items]
            return self._blocks(asked, units, places[items], heads[items], valid, softcap)

        return _given(*self._fold(part, edges), query)

    def _blocks(
        self, query: Tensor, memory: Tensor, slots: Tensor, heads: Tensor, tokens: Tensor | None, softcap: float
    ) -> _Parts:
        """Partials of single blocks, in slices that bound the products that exist at a time."""
        size = self.block_size
        asked = query.float().view(self.kv_heads, self.group, self.k_dim)
        if tokens is None:
            tokens = torch.full_like(slots, size)
        step = max(1, _SLICE_PRODUCTS // (self.group * max(self.k_dim, self.v_dim) * size))
        found = []
        for first in range(0, max(len(slots), 1), step):
            chosen = slice(first, first + step)
            units = memory[slots[chosen].long()].view(_DTYPES[self.element]).float()
            keys = units[:, : self.k_dim * size].view(-1, 1, self.k_dim, size)
            values = units[:, self.k_dim * size :].view(-1, size, self.v_dim)
            valid = torch.arange(size, device=memory.device) < tokens[chosen, None]
            logits = _sum(asked[heads[chosen].long()][..., None] * keys, 2)
            if softcap:
                logits = softcap * torch.tanh(logits.double() / softcap).float()  # rounding hides how tanh was computed
            logits = logits.masked_fill(~valid[:, None], float("-inf"))
            m = logits.amax(-1)
            weights = _exp(logits - m[..., None])
            values = values.masked_fill(~valid[..., None], 0.0)[:, None]
            found.append((m, _sum(weights, 2), _sum(weights[..., None] * values, 2)))
        m, sums, accs = (torch.cat(parts) for parts in zip(*found, strict=True))
        return m, sums, accs

    def _fold(self, part: Callable[[Tensor], _Parts], starts: Tensor) -> tuple[Tensor, Tensor]:
        """Fold groups of neighbours into the running state; `part` gives the partials of some items."""
        counts, device = starts.diff(), starts.device
        shape, places = (self.kv_heads, _GROUP_BLOCKS, self.group), torch.arange(_GROUP_BLOCKS, device=device)
        total = torch.zeros(self.kv_heads, self.group, dtype=torch.float64, device=device)
        top = torch.full(total.shape, _LOWEST, device=device)
        acc = torch.zeros(*total.shape, self.v_dim, device=device)
        kept = torch.empty(2, int(starts[-1]), self.group, device=device)
        for first in range(0, int(counts.max()), _GROUP_BLOCKS):
            valid = first + places < counts[:, None]
            items = (starts[:-1, None] + first + places)[valid].long()
            m, sums, accs = (torch.full(shape, _LOWEST, device=device), torch.zeros(shape, device=device),
                             torch.zeros(*shape, self.v_dim, device=device))  # fmt: skip
            m[valid], sums[valid], accs[valid] = part(items)
            kept[0, items], kept[1, items] = m[valid], sums[valid]
            after = torch.maximum(top, m.amax(1))
            old, fresh = _exp(top - after), _exp(m - after[:, None])
            total = total * old + _sum(sums.double() * fresh, 1)
            acc = acc * old[..., None] + _sum(accs * fresh[..., None], 1)
            top = after
        inverse = torch.where(total > 0, total.reciprocal(), 0.0)
        heads = torch.repeat_interleave(counts)
        share = kept[1] * _exp(kept[0] - top[heads]) * (inverse / self.group).float()[heads]
        return (acc * inverse.float()[..., None]).view(-1, self.v_dim), _sum(share, 1)


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))


def _on(array: Any, where: Tensor) -> Tensor:
    return _tensor(array).to(where.device)


def _optional(array: Any | None, where: Tensor) -> Tensor | None:
    return None if array is None else _on(array, where)


def _given(output: Tensor, mass: Tensor, like: Any) -> tuple[Any, Any]:
    return (output, mass) if isinstance(like, Tensor) else (output.cpu().numpy(), mass.cpu().numpy())


def _joined(memory: Tensor, slots: Any, keys: Any | None) -> tuple[Tensor, Tensor]:
    """Memory and slots in which each block stands as K and V together."""
    places = _on(slots, memory)
    if keys is None:
        return memory, places
    both = torch.cat([memory[_on(keys, memory).long()], memory[places.long()]], 1)
    return both, torch.arange(len(places), device=memory.device)


def _sum(values: Tensor, axis: int) -> Tensor:
    """Sum over an axis by halves."""
    count = values.shape[axis]
    while count > 1:
        half = (count + 1) // 2
        low, high = values.narrow(axis, 0, half), values.narrow(axis, half, count - half)
        if count % 2:
            odd = low.narrow(axis, half - 1, 1)
            low = torch.cat([low.narrow(axis, 0, half - 1) + high, odd], axis)
        else:
            low = low + high
        values, count = low, half
    return values.squeeze(axis)


def _exp(x: Tensor) -> Tensor:
    """Exponential of float32 numbers ≤ 0, relative error below 3e-7; 0 below -87."""
    count = torch.round(x.clamp(min=-88.0) * 1.4426950408889634)
    rest = x - count * 0.693359375 + count * 2.12194440e-4
    result = torch.full_like(x, _TAIL[0])
    for factor in _TAIL[1:]:
        result = result * rest + factor
    scale = ((count.clamp(-126, 0).int() + 127) << 23).view(torch.float32)
    return torch.where(x < -87.0, 0.0, result * scale)
