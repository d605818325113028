"""Qwen3: as Qwen2, with a ``head_dim`` of its own (128 unless the config says otherwise)."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import MODELS, ConfigReader
from kvpager.models.qwen2 import qwen_windows

__all__ = ["qwen3"]


@MODELS.register("qwen3")
def qwen3(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 32 KV heads, ``head_dim`` 128."""
    return config.geometry("qwen3", qwen_windows(config), kv_heads=32, head_dim=128)
