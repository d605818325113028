"""MiMo V2: keys wider than values, and sliding layers with KV heads of their own."""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import ConfigReader, family, refused

__all__ = ["mimo_v2"]

_NEEDS = ("hybrid_layer_pattern", "num_key_value_heads", "head_dim", "v_head_dim", "swa_num_key_value_heads", "swa_head_dim")


@family("mimo_v2_flash", needs=(*_NEEDS, "swa_v_head_dim", "sliding_window"))
def mimo_v2(config: ConfigReader) -> KVGeometry:
    """``hybrid_layer_pattern`` says 1 for a sliding layer; nothing has a default."""
    window = config.count("sliding_window")
    for alias in ("sliding_window_size", "attention_chunk_size"):  # the published configs say the same thing three times
        if config.count(alias, window) != window:
            raise refused(config.name, f"its {alias} = {config.get(alias)} contradicts sliding_window = {window}")
    config.ignore("swa_num_attention_heads", "add_swa_attention_sink_bias")
    full = LayerKV(config.count("num_key_value_heads"), config.count("head_dim"), config.count("v_head_dim"))
    sliding = LayerKV(
        config.count("swa_num_key_value_heads"), config.count("swa_head_dim"), config.count("swa_v_head_dim"), window
    )
    pattern = config.per_layer("hybrid_layer_pattern", known=(0, 1))
    heads = config.count("num_attention_heads")
    return config.model(heads, [sliding if slides else full for slides in pattern])
