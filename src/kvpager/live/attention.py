"""Grouped-query attention that shows its probabilities, and what a recording keeps of them. Needs torch.

Keys and values are never repeated: the query heads of a group stand beside each other as rows of one matrix
product. Only a step's rows of probabilities exist at a time, never queries × keys of a whole prompt.

Shapes: ``G`` KV heads, ``R`` query heads a KV head, ``d`` elements, ``n`` tokens, ``B`` blocks. Leading axes
(layers, queries) are free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kvpager.traces.locality import locality_ranges

__all__ = ["KeyBounds", "RangePlan", "attend", "block_mass", "causal_mask", "range_mass", "range_plan", "wide_attend"]


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, scaling: float, softcap: float | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of a few queries, with its probabilities.

    Parameters
    ----------
    query : Tensor [G * R, queries, d]
        Query heads in order; head h reads KV head ``h // R``.
    key, value : Tensor [G, n, d]
        Not repeated.
    scaling : float
        Factor of the logits, e.g. ``d ** -0.5``.
    softcap : float, optional
        Logits become ``softcap * tanh(logit / softcap)`` (Gemma 2).
    mask : bool Tensor [queries, n], optional
        What each query may read; default everything.

    Returns
    -------
    output : Tensor [G * R, queries, d]
        Attention output.
    probability : Tensor [G, R, queries, n]
        Softmax rows.
    """
    kv_heads, tokens, _ = key.shape
    heads, queries, dim = query.shape
    rows = (query * scaling).reshape(kv_heads, -1, dim)
    logits = torch.matmul(rows, key.transpose(1, 2))
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    if mask is not None:
        shaped = logits.view(kv_heads, -1, queries, tokens)
        logits = shaped.masked_fill(~mask, torch.finfo(logits.dtype).min).view_as(logits)  # finite: padding rows see nothing
    probability = torch.softmax(logits, -1)
    output = torch.matmul(probability, value).view(heads, queries, -1)
    return output, probability.view(kv_heads, heads // kv_heads, queries, tokens)


def wide_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    mask: Tensor | None = None,
    rows: int = 64,
) -> Tensor:
    """Attention of many queries, in slices of `rows` queries: for what SDPA lacks (softcap).

    Arguments as for `attend`; without `mask`, attention is causal and the last query sees every token.

    Returns
    -------
    Tensor [G * R, queries, d]
        Attention output.
    """
    queries, tokens = query.shape[1], key.shape[1]
    outputs = []
    for first in range(0, queries, rows):
        part = query[:, first : first + rows]
        seen = causal_mask(part.shape[1], tokens - queries + first, tokens) if mask is None else mask[first : first + rows]
        outputs.append(attend(part, key, value, scaling=scaling, softcap=softcap, mask=seen)[0])
    return torch.cat(outputs, 1)


def causal_mask(queries: int, first: int, tokens: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask, bool [queries, tokens], of queries that stand at token `first` and after."""
    return torch.arange(tokens, device=device) <= torch.arange(first, first + queries, device=device)[:, None]


def block_mass(probability: Tensor, block_size: int) -> Tensor:
    """Sum probabilities [..., n] over blocks: [..., B]; the last block may be partial."""
    missing = -probability.shape[-1] % block_size
    padded = functional.pad(probability, (0, missing)) if missing else probability
    return padded.view(*padded.shape[:-1], -1, block_size).sum(-1)


class RangePlan(NamedTuple):
    """How `range_mass` sums n tokens: whole blocks by their sums, ragged ends by token."""

    blocks: Tensor
    """Which blocks lie wholly inside each range, float32 [B, ranges]."""
    tokens: Tensor
    """The tokens that only part of their block's ranges hold, int64 [ragged]."""
    ragged: Tensor
    """Which of them each range holds, float32 [ragged, ranges]."""


def range_plan(tokens: int, block_size: int) -> RangePlan:
    """Plan the sums over `locality_ranges` of `tokens` tokens."""
    start, stop = locality_ranges(tokens)
    blocks = np.arange(-(-tokens // block_size))[:, None]
    first, after = blocks * block_size, np.minimum((blocks + 1) * block_size, tokens)
    whole = (start <= first) & (after <= stop)
    touched = (start < after) & (stop > first) & (start < stop) & ~whole
    index = (np.flatnonzero(touched.any(1))[:, None] * block_size + np.arange(block_size)).ravel()
    index = index[index < tokens][:, None]
    ragged = (start <= index) & (index < stop) & ~whole[index[:, 0] // block_size]
    return RangePlan(torch.from_numpy(whole).float(), torch.from_numpy(index[:, 0]), torch.from_numpy(ragged).float())


def range_mass(blocks: Tensor, ragged: Tensor, plan: RangePlan) -> Tensor:
    """Mass on each of `locality_ranges`.

    Parameters
    ----------
    blocks : Tensor [..., B]
        The `block_mass` of softmax rows.
    ragged : Tensor [..., ragged]
        The rows' probabilities at ``plan.tokens``.
    plan : RangePlan
        For the rows' n tokens.

    Returns
    -------
    Tensor [..., ranges]
        Sums; no difference of prefix sums, so small masses keep their digits.
    """
    return blocks @ plan.blocks + ragged @ plan.ragged


class KeyBounds:
    """Per-channel minima and maxima of each block's keys, kept up to date token by token.

    The bound of a block is ``sum_c max(q_c * min_c, q_c * max_c)``, no less than any ``q · k`` of its keys
    (Quest, arXiv 2406.10774). As ``max(q * min, q * max) = max(q, 0) * max + min(q, 0) * min``, it is one matrix
    product, and, being linear in those two halves of the query, its mean over a group is the bound of their mean.

    Parameters
    ----------
    layers, kv_heads, dim, blocks, block_size : int
        Shape; `blocks` is the first capacity, doubled as needed.
    """

    def __init__(self, layers: int, kv_heads: int, dim: int, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._both = torch.empty(layers, kv_heads, 2 * dim, blocks)  # maxima, then minima; blocks innermost for speed

    def fill(self, layer: int, key: Tensor) -> None:
        """Take all keys [G, n, d] of a layer anew."""
        tokens, dim = key.shape[1:]
        self._grow(-(-tokens // self.block_size))
        high, low = self._both[layer, :, :dim], self._both[layer, :, dim:]
        whole = tokens // self.block_size
        blocks = key[:, : whole * self.block_size].reshape(len(key), whole, self.block_size, dim)
        high[..., :whole], low[..., :whole] = blocks.amax(2).mT, blocks.amin(2).mT
        if tokens % self.block_size:
            rest = key[:, whole * self.block_size :]
            high[..., whole], low[..., whole] = rest.amax(1), rest.amin(1)

    def append(self, keys: Tensor, token: int) -> None:
        """Take the keys [layers, G, d] of token number `token`."""
        block, dim = token // self.block_size, keys.shape[-1]
        self._grow(block + 1)
        high, low = self._both[:, :, :dim, block], self._both[:, :, dim:, block]
        first = token % self.block_size == 0
        high.copy_(keys if first else torch.maximum(high, keys))
        low.copy_(keys if first else torch.minimum(low, keys))

    def bound(self, query: Tensor, blocks: int) -> Tensor:
        """Bounds by scaled queries [layers, G, R, d], mean over R: [layers, G, B]."""
        halves = torch.cat([query.clamp(min=0), query.clamp(max=0)], -1).mean(2, keepdim=True)
        return torch.matmul(halves, self._both[..., :blocks])[:, :, 0]

    def _grow(self, blocks: int) -> None:
        room = self._both.shape[-1]
        if blocks > room:
            self._both = functional.pad(self._both, (0, max(blocks - room, room)))
