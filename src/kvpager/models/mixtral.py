"""Mixtral: Mistral's attention under a mixture of experts; a window only if the config gives one."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family

__all__ = ["mixtral"]


@family("mixtral")
def mixtral(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 KV heads, no window, ``head_dim`` = hidden size by heads."""
    window = None if config.get("sliding_window") is None else config.count("sliding_window")
    heads = config.heads(kv_heads=8)
    return config.model(heads.q, [heads.layer(window)] * config.count("num_hidden_layers"))
