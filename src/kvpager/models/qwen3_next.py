"""Qwen3-Next and Qwen3.5: three layers of linear attention (gated delta net), then one of full attention.

A linear layer keeps two things of a sequence, whatever its length: the last inputs of its short convolution, in the
model's dtype, and the recurrent state of each value head, in float32 unless ``mamba_ssm_dtype`` says otherwise.
"""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import FULL, LINEAR, ConfigReader, family
from kvpager.models.states import gated_delta_layer

__all__ = ["qwen3_next"]


@family("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", needs=("num_key_value_heads", "linear_num_value_heads"))
def qwen3_next(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: ``head_dim`` 256, every 4th layer full; 16 key heads of 128, value heads of 128, kernel 4."""
    every = config.count("full_attention_interval", 4)
    kinds = config.kinds(
        [LINEAR if (layer + 1) % every else FULL for layer in range(config.count("num_hidden_layers"))], (FULL, LINEAR)
    )
    heads = config.heads(kv_heads=config.count("num_key_value_heads"), head_dim=256)
    linear: LayerKV = gated_delta_layer(
        config,
        kernel=config.count("linear_conv_kernel_dim", 4),
        key=(config.count("linear_num_key_heads", 16), config.count("linear_key_head_dim", 128)),
        value=(config.count("linear_num_value_heads"), config.count("linear_value_head_dim", 128)),
        state_dtype=config.get("mamba_ssm_dtype", "float32"),
    )
    return config.model(heads.q, [heads.layer() if kind == FULL else linear for kind in kinds])
