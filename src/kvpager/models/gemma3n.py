"""Gemma 3n: four sliding layers, then a full one; the last layers read the KV of the last of their kind before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import FULL, SLIDING, ConfigReader, family, refused

__all__ = ["gemma3n", "share_last"]


@family("gemma3n_text")
def gemma3n(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 query and 2 KV heads, ``head_dim`` 256, a window of 512 tokens, 15 sharing layers."""
    kinds = config.kinds([SLIDING if (layer + 1) % 5 else FULL for layer in range(config.count("num_hidden_layers"))])
    heads = config.heads(q_heads=8, kv_heads=2, head_dim=256)
    layers = [heads.layer(window) for window in config.windows(kinds, 512)]
    return config.model(heads.q, share_last(config, layers, kinds, 15))


def share_last(config: ConfigReader, layers: Sequence[LayerKV], kinds: Sequence[str], default: int) -> list[LayerKV]:
    """Return `layers` with the last ``num_kv_shared_layers`` reading the last earlier layer of their kind."""
    sharing = config.count("num_kv_shared_layers", default, least=0)
    first = len(layers) - sharing
    keepers = {kind: layer for layer, kind in enumerate(kinds[: max(first, 0)])}
    homeless = sorted(set(kinds[max(first, 0) :]) - set(keepers))
    if homeless:
        raise refused(
            config.name,
            f"its num_kv_shared_layers = {sharing} of {len(layers)} layers leave no layer that keeps the KV of {homeless[0]}",
        )
    return [layer if i < first else replace(layer, shares_layer=keepers[kinds[i]]) for i, layer in enumerate(layers)]
