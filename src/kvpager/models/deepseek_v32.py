"""DeepSeek V3.2 and GLM-5: latent attention that an indexer makes sparse (DSA); its keys are cached too.

The indexer picks ``index_topk`` tokens for a step to read; every token's key stays, so the cache does not shrink.
Where ``indexer_types`` says ``shared`` (GLM-5.2), a layer uses the choice of an earlier one and keeps no key.
"""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family, refused
from kvpager.models.deepseek_v3 import MLA_NEEDS, latent_layer

__all__ = ["deepseek_v32"]


@family("deepseek_v32", "glm_moe_dsa", needs=(*MLA_NEEDS, "index_head_dim"))
def deepseek_v32(config: ConfigReader) -> KVGeometry:
    """Every layer keeps a latent vector, and an index key of ``index_head_dim`` elements unless it shares one."""
    config.ignore("index_n_heads", "index_topk", "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration")
    if config.get("index_topk_pattern") is not None:
        raise refused(config.name, "its config has an index_topk_pattern, which is not known to keep or share index keys")
    kinds = config.per_layer("indexer_types", ["full"] * config.count("num_hidden_layers"), known=("full", "shared"))
    config.kinds(["indexed_attention"] * len(kinds), known=("indexed_attention", "deepseek_sparse_attention"))
    if kinds[0] != "full":
        raise refused(config.name, "its indexer_types begin with 'shared': there is no earlier layer to share with")
    dims = [config.count("index_head_dim") if kind == "full" else 0 for kind in kinds]
    return config.model(config.count("num_attention_heads"), [latent_layer(config, dim) for dim in dims])
