"""Kimi Linear and Kimi K3: layers of linear attention (KDA), every fourth one of latent attention."""

from __future__ import annotations

from collections.abc import Mapping

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family, refused
from kvpager.models.deepseek_v3 import MLA_NEEDS, latent_layer
from kvpager.models.states import gated_delta_layer

__all__ = ["kimi_linear"]


@family("kimi_linear", needs=(*MLA_NEEDS, "linear_attn_config"))
def kimi_linear(config: ConfigReader) -> KVGeometry:
    """``linear_attn_config`` lists both kinds of layers, counted from 1; the recurrent state is float32."""
    listed = config.required("linear_attn_config")
    if not isinstance(listed, Mapping):
        raise refused(config.name, "its linear_attn_config is not a JSON object")
    config.ignore("mla_use_nope", "mla_use_output_gate")
    inner = ConfigReader(listed, config.name, config.dtype_bytes, config.state_dtype_bytes)
    shape = (inner.count("num_heads"), inner.count("head_dim"))
    linear = gated_delta_layer(
        config, kernel=inner.count("short_conv_kernel_size", 4), key=shape, value=shape, state_dtype="float32"
    )
    count = config.count("num_hidden_layers")
    full, kda = (inner.required(key) for key in ("full_attn_layers", "kda_layers"))
    listed_once = isinstance(full, list) and isinstance(kda, list) and sorted(map(str, full + kda))
    if listed_once != sorted(map(str, range(1, count + 1))):
        raise refused(config.name, f"its full_attn_layers and kda_layers do not make up its {count} layers, counted from 1")
    latent = latent_layer(config)
    heads = config.count("num_attention_heads")
    return config.model(heads, [latent if layer in full else linear for layer in range(1, count + 1)])
