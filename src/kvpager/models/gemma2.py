"""Gemma 2: sliding and full layers alternate, the first one slides."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family

__all__ = ["gemma2"]


@family("gemma2")
def gemma2(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 4 KV heads, ``head_dim`` 256, a window of 4,096 tokens."""
    kinds = [FULL if layer % 2 else SLIDING for layer in range(config.count("num_hidden_layers"))]
    heads = config.heads(kv_heads=4, head_dim=256)
    return config.model(heads.q, [heads.layer(window) for window in config.windows(kinds, 4096)])
