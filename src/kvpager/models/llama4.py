"""Llama 4: three layers attend within chunks of 8,192 tokens, the fourth to everything."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import CHUNKED, FULL, ConfigReader, family

__all__ = ["llama4"]


@family("llama4_text")
def llama4(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 KV heads, ``head_dim`` 128, chunks of 8,192; layers without RoPE are the full ones.

    A chunked layer's cache is counted at its fullest, just before a chunk ends.
    """
    count, every = config.count("num_hidden_layers"), config.count("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(count)]
    rotates = config.per_layer("no_rope_layers", usual, known=(0, 1)) if config.get("no_rope_layers") else usual
    chunked = "attention_chunk_size" not in config.config or config.get("attention_chunk_size") is not None
    kinds = config.kinds([CHUNKED if turn and chunked else FULL for turn in rotates], (FULL, CHUNKED))
    heads = config.heads(kv_heads=8, head_dim=128)
    chunk = config.count("attention_chunk_size", 8192) if CHUNKED in kinds else None
    return config.model(heads.q, [heads.layer(chunk if kind == CHUNKED else None) for kind in kinds])
