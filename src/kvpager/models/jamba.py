"""Jamba: one layer of attention in eight, Mamba-1 in the others."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family, refused
from kvpager.models.states import mamba1_layer

__all__ = ["jamba"]


@family("jamba")
def jamba(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 KV heads, layer 4 of 8 attends; Mamba of 16 states, kernel 4, expansion 2.

    The config names no dtype of the state; transformers keeps it in the model's.
    """
    period, offset = config.count("attn_layer_period", 8), config.count("attn_layer_offset", 4, least=0)
    if offset >= period:
        raise refused(config.name, f"its attn_layer_offset = {offset} is not below attn_layer_period = {period}")
    heads = config.heads(kv_heads=8)
    mamba = mamba1_layer(
        config,
        kernel=config.count("mamba_d_conv", 4),
        inner=config.count("mamba_expand", 2) * config.count("hidden_size"),
        state=config.count("mamba_d_state", 16),
        state_dtype={4: "float32", 2: "bfloat16"}.get(config.dtype_bytes, "bfloat16"),
    )
    config.ignore("mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
    count = config.count("num_hidden_layers")
    return config.model(heads.q, [heads.layer() if i % period == offset else mamba for i in range(count)])
