"""Gemma 3: five sliding layers, then a full one.

The published multimodal configs nest the text model and leave out what equals transformers' defaults (the
4B one even its number of query heads), so those defaults belong to the family.
"""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family

__all__ = ["gemma3"]


@family("gemma3", "gemma3_text")
def gemma3(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 query and 4 KV heads, ``head_dim`` 256, a window of 4,096 tokens, every 6th layer full."""
    every = config.count("sliding_window_pattern", 6)
    kinds = [SLIDING if (layer + 1) % every else FULL for layer in range(config.count("num_hidden_layers"))]
    heads = config.heads(q_heads=8, kv_heads=4, head_dim=256)
    return config.model(heads.q, [heads.layer(window) for window in config.windows(kinds, 4096)])
