"""Falcon: multi-query attention (one KV head), or groups in the new decoder architecture (40B, 180B)."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, Heads, family, refused

__all__ = ["falcon"]


@family("falcon")
def falcon(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: ``multi_query`` on, the new architecture off, ``num_kv_heads`` = query heads."""
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    grouped = config.flag("new_decoder_architecture", False)
    listed = config.count("num_kv_heads", heads)
    of_kv = 1 if config.flag("multi_query", True) and not grouped else listed
    if hidden % heads or heads % of_kv:
        raise refused(config.name, f"its {heads} query heads divide neither hidden_size = {hidden} nor into {of_kv} KV heads")
    shape = Heads(heads, of_kv, hidden // heads)
    return config.model(heads, [shape.layer()] * config.count("num_hidden_layers"))
