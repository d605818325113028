"""gpt-oss: sliding and full layers alternate, the first one slides; heads of 64, a window of 128 tokens."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, SLIDING, ConfigReader, family

__all__ = ["gpt_oss"]


@family("gpt_oss")
def gpt_oss(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 KV heads, ``head_dim`` 64, a window of 128 tokens."""
    kinds = [FULL if layer % 2 else SLIDING for layer in range(config.count("num_hidden_layers"))]
    heads = config.heads(kv_heads=8, head_dim=64)
    return config.model(heads.q, [heads.layer(window) for window in config.windows(kinds, 128)])
