"""Gemma 4: sliding and full layers with shapes of their own; the small ones share KV between their last layers.

``attention_k_eq_v`` says that K and V of a full layer come from one projection. They still differ once K is
normalised and rotated, so both are kept and both are counted.
"""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import FULL, SLIDING, ConfigReader, family, refused
from kvpager.models.gemma3n import share_last

__all__ = ["gemma4"]


@family("gemma4", "gemma4_text")
def gemma4(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: 8 and 4 heads of 256, full layers' heads of 512, every 6th layer and the last full."""
    count = config.count("num_hidden_layers")
    kinds = config.kinds([SLIDING if (layer + 1) % 6 else FULL for layer in range(count)])
    kinds[-1] = FULL
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise refused(config.name, "its text attends in both directions, which needs no KV cache")
    heads = config.heads(q_heads=8, kv_heads=4, head_dim=256)
    wide = config.count("global_head_dim", 512)
    listed = config.count("num_global_key_value_heads", heads.kv)
    of_full = listed if config.flag("attention_k_eq_v", False) else heads.kv
    layers = [LayerKV(of_full, wide, wide) if window is None else heads.layer(window) for window in _windows(config, kinds)]
    return config.model(heads.q, share_last(config, layers, kinds, 0))


def _windows(config: ConfigReader, kinds: list[str]) -> list[int | None]:
    window = config.count("sliding_window", 512) if SLIDING in kinds else None
    return [window if kind == SLIDING else None for kind in kinds]
