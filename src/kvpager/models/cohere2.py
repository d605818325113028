"""Command R7B and Command A: three sliding layers, then a full one."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family

__all__ = ["cohere2"]


@family("cohere2")
def cohere2(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: as many KV heads as query heads, a window of 4,096 tokens, every 4th layer full."""
    every = config.count("sliding_window_pattern", 4)
    kinds = [SLIDING if (layer + 1) % every else FULL for layer in range(config.count("num_hidden_layers"))]
    heads = config.heads()
    return config.model(heads.q, [heads.layer(window) for window in config.windows(kinds, 4096)])
