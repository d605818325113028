"""Gemma 4: sliding and full layers with shapes of their own; the small ones share KV between their last layers.

``attention_k_eq_v`` says that K and V of a full layer come from one projection. They still differ once K is
normalised and rotated, so both are kept and both are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import FULL, SLIDING, ConfigReader, family, refused
from kvpager.models.gemma3n import share_last

__all__ = ["gemma4"]


@family("gemma4", "gemma4_text")
def gemma4(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 and 4 heads of 256, full layers' heads of 512, every 6th layer and the last full."""
    count = config.count("num_hidden_layers")
    kinds = config.kinds([SLIDING if (layer + 1) % 6 else FULL for layer in range(count)])
    kinds[-1] = FULL  # as transformers forces it
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise refused(config.name, "its text attends in both directions, which needs no KV cache")
    heads = config.heads(q_heads=8, kv_heads=4, head_dim=256)
    wide = config.count("global_head_dim", 512)
    listed = config.count("num_global_key_value_heads", heads.kv)
    full = LayerKV(listed if config.flag("attention_k_eq_v", False) else heads.kv, wide, wide)
    config.ignore("sliding_window")  # means nothing if no layer slides
    window = config.count("sliding_window", 512) if SLIDING in kinds else None
    layers = [heads.layer(window) if kind == SLIDING else full for kind in kinds]
    layers = [_overridden(config, number, layer) for number, layer in enumerate(layers)]
    return config.model(heads.q, share_last(config, layers, kinds, 0))


def _overridden(config: ConfigReader, number: int, layer: LayerKV) -> LayerKV:
    """Apply ``per_layer_config``, the form in which transformers 5.24 writes the shapes of full layers."""
    listed = config.get("per_layer_config", {})
    override = listed.get(str(number), listed.get(number, {})) if isinstance(listed, Mapping) else None
    if not isinstance(override, Mapping) or not set(override) <= {"head_dim", "num_key_value_heads"}:
        raise refused(
            config.name, f"its per_layer_config for layer {number} sets something besides head_dim and num_key_value_heads"
        )
    inner = ConfigReader(override, config.name, config.dtype_bytes)
    dim = inner.count("head_dim", layer.k_dim)
    return replace(layer, num_kv_heads=inner.count("num_key_value_heads", layer.num_kv_heads), k_dim=dim, v_dim=dim)
