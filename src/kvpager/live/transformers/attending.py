"""The attention function that transformers calls: plain, watched by a recorder, or over a tiered cache."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from kvpager.core import KVGeometry
from kvpager.errors import ModelError
from kvpager.live.attention import KeyBounds, attend, block_mass, causal_mask, range_mass, range_plan, wide_attend
from kvpager.traces.decoder import Observation

__all__ = ["ATTENTION", "TAG", "Tiered", "Watch", "half"]

ATTENTION = "kvpager"
"""Name under which attention and mask function are registered with transformers."""

TAG = "kvpager_layer"
"""Attribute of the keys that a tiered cache hands out: the layer that holds them."""


class Tiered(Protocol):
    """A layer of a tiered cache, to which attention is left."""

    def attend(self, query: Tensor, mask: Tensor | None, scaling: float, softcap: float) -> Tensor:
        """Return attention output [rows, q_heads, tokens, v_dim]."""
        ...


class Watch:
    """What one forward call's attention functions leave behind, stacked over the full-attention layers."""

    def __init__(self, geometry: KVGeometry, block_size: int) -> None:
        self.slots = {layer: slot for slot, layer in enumerate(geometry.full_layers)}
        first = geometry.layers[geometry.full_layers[0]]
        heads, group = first.num_kv_heads, geometry.num_q_heads // first.num_kv_heads
        self.block_size = block_size
        self.bounds = KeyBounds(len(self.slots), heads, first.k_dim, 64, block_size)
        self.query = torch.zeros(len(self.slots), heads, group, first.k_dim)
        self.previous = self.query.clone()
        self.key = torch.zeros(len(self.slots), heads, first.k_dim)
        self.blocks: list[Tensor] = []
        self.ragged: list[Tensor] = []
        self.tail = 0
        self.plan = range_plan(1, block_size)

    def watch_step(self, slot: int, query: Tensor, key: Tensor, probability: Tensor) -> None:
        """Reduce one layer's rows at once, while they are in the processor's cache."""
        self.query[slot] = query
        self.key[slot] = key
        self.blocks.append(block_mass(probability, self.block_size))
        self.ragged.append(probability.flatten(0, 1).index_select(1, self.plan.tokens))

    def observe(self, tokens: int) -> Observation:
        """Turn what a step left behind into its observation."""
        self.bounds.append(self.key, tokens - 1)
        blocks = torch.stack(self.blocks)
        bound = self.bounds.bound(self.query, blocks.shape[-1])
        cosine = functional.cosine_similarity(self.query, self.previous, dim=-1).flatten(1)
        ranges = range_mass(blocks.flatten(1, 2), torch.stack(self.ragged), self.plan)
        self.previous.copy_(self.query)
        return Observation(*(half(array) for array in (blocks.mean(2), bound, cosine, ranges)))


def half(array: Tensor) -> NDArray[np.float16]:
    """Return `array` in float16, as recordings keep it."""
    return np.asarray(array.numpy(), np.float16)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, softcap: float | None = None, kvpager_watch: Watch | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention function for transformers: over tiers for tagged keys, else SDPA, watched where a `Watch` asks for it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    tiered: Tiered | None = getattr(key, TAG, None)
    if tiered is not None:
        if kwargs.get("s_aux") is not None or kwargs.get("dropout"):
            raise ModelError(
                "the tiered cache knows neither attention sinks with a logit of their own nor dropout: use another cache"
            )
        return tiered.attend(query, attention_mask, scale, softcap or 0.0).transpose(1, 2).contiguous(), None
    slot = None if kvpager_watch is None else kvpager_watch.slots.get(module.layer_idx)
    if kvpager_watch is None or slot is None or not (kvpager_watch.tail or query.shape[2] == 1):
        output = _plain(query, key, value, attention_mask, scale, softcap)
    else:
        output = _watched(kvpager_watch, slot, query, key, value, attention_mask, scale, softcap)
    return output.transpose(1, 2).contiguous(), None


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """Unwatched attention [batch, q_heads, queries, d]."""
    if softcap is None:
        causal = mask is None and query.shape[2] > 1
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
    masks = [None] * len(query) if mask is None else [row[0] for row in mask]
    rows = zip(query, key, value, masks, strict=True)
    return torch.stack([wide_attend(q, k, v, scaling=scale, softcap=softcap, mask=seen) for q, k, v, seen in rows])


def _watched(
    watch: Watch, slot: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attention of one sequence whose last queries are watched: a step's only one, or the prefill's tail."""
    queries, tokens = query.shape[2], key.shape[2]
    if not watch.tail:
        output, probability = attend(query[0], key[0], value[0], scaling=scale, softcap=softcap)
        watch.watch_step(slot, (query[0, :, 0] * scale).view_as(watch.query[slot]), key[0, :, -1], probability[:, :, 0])
        return output[None]
    head = queries - watch.tail
    seen = causal_mask(watch.tail, tokens - watch.tail, tokens)
    output, probability = attend(query[0, :, head:], key[0], value[0], scaling=scale, softcap=softcap, mask=seen)
    watch.blocks.append(block_mass(probability.mean(1), watch.block_size))
    watch.previous[slot] = (query[0, :, -1] * scale).view_as(watch.previous[slot])
    watch.bounds.fill(slot, key[0])
    if not head:
        return output[None]
    front = None if mask is None else mask[:, :, :head, : tokens - watch.tail]
    kept = slice(None, tokens - watch.tail)
    return torch.cat([_plain(query[:, :, :head], key[:, :, kept], value[:, :, kept], front, scale, softcap), output[None]], 2)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
