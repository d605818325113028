"""Qwen3, dense, mixture of experts or with vision: as Qwen2, with a ``head_dim`` of its own (128 for the dense ones)."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family
from kvpager.models.qwen2 import qwen_windows

__all__ = ["qwen3", "qwen3_moe"]


@family("qwen3", "qwen3_vl_text")
def qwen3(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 32 KV heads, ``head_dim`` 128."""
    heads = config.heads(kv_heads=32, head_dim=128)
    return config.model(heads.q, [heads.layer(window) for window in qwen_windows(config)])


@family("qwen3_moe", "qwen3_vl_moe_text")
def qwen3_moe(config: ConfigReader) -> KVGeometry:
    """Number of KV heads required; ``head_dim`` = hidden size by heads unless the config says otherwise."""
    heads = config.heads(kv_heads=config.count("num_key_value_heads"))
    return config.model(heads.q, [heads.layer(window) for window in qwen_windows(config)])
