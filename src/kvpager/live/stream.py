"""Attention of many queries over more keys than fast memory holds: a prefill, streamed group of blocks by group.

The groups are fixed spans of the sequence and are folded in ascending order, so that the result does not depend on
which blocks were resident (law 5a).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kvpager.live.attention import causal_mask

__all__ = ["GROUP_BLOCKS", "WATCHED", "ManyQueries"]

GROUP_BLOCKS = 32
"""Blocks that are attended to together."""

WATCHED = 32
"""Queries at the end of a call whose attention mass is observed."""

_SLICE = 256
_SPAN = 512


class ManyQueries:
    """Running softmax of a call's queries, in float32.

    Parameters
    ----------
    query : Tensor [kv_heads * group, queries, k_dim]
        Scaled; in position order, without gaps.
    kv_heads, v_dim, block_size : int
        Shape.
    softcap : float
        Logits become ``softcap * tanh(logit / softcap)``; 0 = not.
    """

    def __init__(self, query: Tensor, kv_heads: int, v_dim: int, block_size: int, softcap: float = 0.0) -> None:
        self._queries, dim = query.shape[1:]
        self._query = query.view(kv_heads, -1, self._queries, dim)
        shape = self._query.shape[:3]
        self._top = torch.full(shape, -torch.inf, device=query.device)
        self._sum = torch.zeros(shape, device=query.device)
        self._acc = torch.zeros(*shape, v_dim, device=query.device)
        self._block_size, self._softcap = block_size, softcap
        self._seen: list[Tensor] = []

    def past(self, key: Tensor, value: Tensor) -> None:
        """Attend to a group of whole blocks that lie before all queries.

        Parameters
        ----------
        key : Tensor [kv_heads, k_dim, tokens]
            Keys.
        value : Tensor [kv_heads, tokens, v_dim]
            Values.
        """
        for start in range(0, self._queries, _SLICE):
            part = slice(start, start + _SLICE)
            self._add(self._logits(self._query[:, :, part], key), value, part)
        self._watch(self._logits(self._query[:, :, -WATCHED:], key))

    def own(self, key: Tensor, value: Tensor) -> None:
        """Attend, causally, to the last tokens: those of an open block, then one for each query.

        Parameters
        ----------
        key : Tensor [kv_heads, k_dim, tokens]
            Keys, from a block's start.
        value : Tensor [kv_heads, tokens, v_dim]
            Values.
        """
        tokens = key.shape[-1]
        before = tokens - self._queries
        if before == 0 and not self._seen and not self._softcap:
            self._alone(key, value)
        else:
            self._after(key, value, before)
        watched = min(WATCHED, self._queries)
        logits = self._logits(self._query[:, :, -watched:], key)
        self._watch(logits.masked_fill(~causal_mask(watched, tokens - watched, tokens, key.device), -torch.inf))

    def _alone(self, key: Tensor, value: Tensor) -> None:
        """Attend where nothing lies before the queries: what SDPA is made for."""
        query = self._query.flatten(0, 1)[None]
        output = functional.scaled_dot_product_attention(
            query, key.mT[None], value[None], is_causal=True, scale=1.0, enable_gqa=True
        )
        self._acc, self._sum = output.view_as(self._acc), torch.ones_like(self._sum)

    def _after(self, key: Tensor, value: Tensor, before: int) -> None:
        for start in range(0, self._queries, _SLICE):
            part = slice(start, min(start + _SLICE, self._queries))
            for first in range(0, before + part.stop, _SPAN):
                span = slice(first, min(first + _SPAN, before + part.stop))
                logits = self._logits(self._query[:, :, part], key[..., span])
                if span.stop > before + part.start + 1:
                    first_seen = before + part.start - span.start
                    seen = causal_mask(part.stop - part.start, first_seen, span.stop - span.start, key.device)
                    logits = logits.masked_fill(~seen, -torch.inf)
                self._add(logits, value[:, span], part)

    def output(self) -> Tensor:
        """Attention output, [kv_heads * group, queries, v_dim]."""
        return (self._acc / self._sum[..., None]).flatten(0, 1)

    def mass(self) -> Tensor:
        """Attention mass of each block, mean over the group and the watched queries, [kv_heads, blocks]."""
        return torch.softmax(torch.cat(self._seen, -1), -1).mean((1, 2))

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        logits = torch.matmul(query.flatten(1, 2), key).view(*query.shape[:3], -1)
        return torch.tanh(logits / self._softcap) * self._softcap if self._softcap else logits

    def _add(self, logits: Tensor, value: Tensor, part: slice) -> None:
        before = self._top[:, :, part]
        top = torch.maximum(before, logits.amax(-1))
        weights = torch.exp(logits - top[..., None])
        old = torch.exp(before - top)
        new = torch.matmul(weights.flatten(1, 2), value).view(*weights.shape[:3], -1)
        self._sum[:, :, part] = self._sum[:, :, part] * old + weights.sum(-1)
        self._acc[:, :, part] = self._acc[:, :, part] * old[..., None] + new
        self._top[:, :, part] = top

    def _watch(self, logits: Tensor) -> None:
        """Keep each block's log of summed exponentials, [kv_heads, group, watched, blocks]."""
        missing = -logits.shape[-1] % self._block_size
        padded = functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits
        self._seen.append(torch.logsumexp(padded.view(*padded.shape[:-1], -1, self._block_size), -1))
