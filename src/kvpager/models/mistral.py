"""Mistral: one window for all layers, or none (``sliding_window: null``, version 0.2 on)."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family, refused

__all__ = ["mistral"]


@family("mistral")
def mistral(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 KV heads, a window of 4,096 tokens, ``head_dim`` = hidden size by heads."""
    kind = FULL if config.config.get("sliding_window", 4096) is None else SLIDING
    windows = config.windows([kind] * config.count("num_hidden_layers"), 4096)
    if len(set(windows)) > 1 or (windows[0] is None) != (kind == FULL):
        raise refused(config.name, "its layer_types contradict sliding_window; family 'mistral' has one kind of layer")
    heads = config.heads(kv_heads=8)
    return config.model(heads.q, [heads.layer(window) for window in windows])
