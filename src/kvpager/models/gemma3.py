"""Gemma 3: five sliding layers, then a full one.

The published multimodal configs nest the text model and leave out what equals transformers' defaults (the
4B one even its number of query heads), so those defaults belong to the family.
"""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, MODELS, SLIDING, ConfigReader

__all__ = ["gemma3"]


@MODELS.register("gemma3_text")
@MODELS.register("gemma3")
def gemma3(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 query and 4 KV heads, ``head_dim`` 256, a window of 4,096 tokens, every 6th layer full."""
    every = config.count("sliding_window_pattern", 6)
    kinds = [SLIDING if (layer + 1) % every else FULL for layer in range(config.count("num_hidden_layers"))]
    return config.geometry("gemma3", config.windows(kinds, 4096), q_heads=8, kv_heads=4, head_dim=256)
