"""DeepSeek V2, V3, R1 and Kimi K2: multi-head latent attention, one vector a token and layer for all heads.

K and V are both made from that vector when they are needed, so there is no factor of two and no factor of heads.
"""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import ConfigReader, family

__all__ = ["deepseek_v3", "latent_layer"]

MLA_NEEDS = ("kv_lora_rank", "qk_rope_head_dim")


@family("deepseek_v3", "deepseek_v2", "kimi_k2", needs=MLA_NEEDS)
def deepseek_v3(config: ConfigReader) -> KVGeometry:
    """Every layer keeps ``kv_lora_rank + qk_rope_head_dim`` elements a token."""
    layers = [latent_layer(config)] * config.count("num_hidden_layers")
    return config.model(config.count("num_attention_heads"), layers)


def latent_layer(config: ConfigReader, index_dim: int = 0) -> LayerKV:
    """Return a layer of latent attention, with an indexer's key of `index_dim` elements beside it."""
    latent, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim", least=0)
    return LayerKV(1, latent + rope, 0, latent=True, index_dim=index_dim)
