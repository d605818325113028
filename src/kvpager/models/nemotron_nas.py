"""Llama-Nemotron from architecture search: each layer has KV heads of its own, or no attention at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import ConfigReader, family, refused

__all__ = ["nemotron_nas"]


@family("nemotron-nas", needs=("block_configs",))
def nemotron_nas(config: ConfigReader) -> KVGeometry:
    """``block_configs[i].attention`` gives ``n_heads_in_group`` (query heads a KV head serves) or ``no_op``."""
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    dim = config.count("head_dim", hidden // heads)
    blocks = config.per_layer("block_configs")
    return config.model(heads, [_layer(config, i, block, heads, dim) for i, block in enumerate(blocks)])


def _layer(config: ConfigReader, number: int, block: Any, heads: int, dim: int) -> LayerKV:
    attention = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(attention, Mapping):
        raise refused(config.name, f"its block_configs[{number}] has no 'attention', which family nemotron-nas cannot do without")
    if attention.get("no_op") or attention.get("replace_with_linear"):
        return LayerKV(0, 0, 0)  # skipped, or a plain matrix instead of attention: neither keeps anything
    unknown = [key for key in ("window_length", "num_sink_tokens", "sparsify", "unshifted_sink") if attention.get(key)]
    if unknown:
        raise refused(
            config.name, f"its block_configs[{number}].attention has {unknown[0]}, which family nemotron-nas does not describe"
        )
    group = attention.get("n_heads_in_group")
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or heads % group:
        raise refused(
            config.name, f"its block_configs[{number}].attention says n_heads_in_group = {group!r} for {heads} query heads"
        )
    return LayerKV(heads // group, dim, dim)
