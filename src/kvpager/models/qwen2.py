"""Qwen2 and Qwen2.5: full attention, unless ``use_sliding_window`` gives the upper layers a window."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family, refused

__all__ = ["qwen2", "qwen_windows"]


@family("qwen2")
def qwen2(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 32 KV heads, ``head_dim`` = hidden size by heads."""
    heads = config.heads(kv_heads=32)
    return config.model(heads.q, [heads.layer(window) for window in qwen_windows(config)])


def qwen_windows(config: ConfigReader) -> list[int | None]:
    """Windows by Qwen's rule: with ``use_sliding_window``, the layers from ``max_window_layers`` on slide."""
    layers = config.count("num_hidden_layers")
    config.ignore("sliding_window", "max_window_layers")  # mean nothing while use_sliding_window is off
    slides = config.flag("use_sliding_window", False) and config.config.get("sliding_window", 4096) is not None
    first = config.count("max_window_layers", 28, least=0) if slides else layers
    windows = config.windows([FULL if layer < first else SLIDING for layer in range(layers)], 4096)
    if any(windows) and not slides:
        raise refused(config.name, "its layer_types slide although use_sliding_window is off")
    return windows
