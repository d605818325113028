"""MiniMax M2 and M3: grouped queries; in M3 an indexer chooses blocks in most layers, and its keys are cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family, refused

__all__ = ["minimax_m2", "minimax_m3"]

_NEEDS = ("num_key_value_heads", "head_dim")


@family("minimax_m2", needs=_NEEDS)
def minimax_m2(config: ConfigReader) -> KVGeometry:
    """Full attention in every layer; nothing has a default."""
    kinds = config.per_layer("attn_type_list", [1] * config.count("num_hidden_layers"), known=(1,))  # 1 = full attention
    heads = config.heads(kv_heads=config.count("num_key_value_heads"), head_dim=config.count("head_dim"))
    return config.model(heads.q, [heads.layer()] * len(kinds))


@family("minimax_m3", needs=(*_NEEDS, "sparse_attention_config"))
def minimax_m3(config: ConfigReader) -> KVGeometry:
    """``sparse_attention_config`` says which layers have an indexer, and how wide its key is."""
    sparse = config.required("sparse_attention_config")
    if not isinstance(sparse, Mapping):
        raise refused(config.name, "its sparse_attention_config is not a JSON object")
    heads = config.heads(kv_heads=config.count("num_key_value_heads"), head_dim=config.count("head_dim"))
    inner = ConfigReader(sparse, config.name, config.dtype_bytes)
    indexed, count = inner.get("sparse_attention_freq"), config.count("num_hidden_layers")
    if not isinstance(indexed, Sequence) or len(indexed) != count or any(flag not in (0, 1) for flag in indexed):
        raise refused(config.name, f"its sparse_attention_freq is not a list of {count} zeros and ones")
    dim = inner.count("sparse_index_dim") if inner.flag("use_sparse_attention", True) else 0
    return config.model(heads.q, [replace(heads.layer(), index_dim=dim * flag) for flag in indexed])
