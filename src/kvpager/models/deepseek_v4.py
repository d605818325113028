"""DeepSeek V4: every layer keeps a short window, most keep compressed entries as well, some an indexer for them.

``compress_ratios`` gives each layer's tokens behind one entry: 0 = window only; 4 = entries and an index key each;
128 = entries alone. An entry that is not full yet is still in the window, so it costs nothing of its own.
"""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import ConfigReader, family, refused

__all__ = ["deepseek_v4"]

_INDEXED = 4


@family("deepseek_v4", needs=("compress_ratios", "head_dim", "index_head_dim"))
def deepseek_v4(config: ConfigReader) -> KVGeometry:
    """Entries are one vector of ``head_dim`` elements for all heads; the window defaults to 128 tokens."""
    layers, dim = config.count("num_hidden_layers"), config.count("head_dim")
    if config.count("num_key_value_heads", 1) != 1:
        raise refused(config.name, "its config has several KV heads; family 'deepseek_v4' keeps one vector for all heads")
    window = config.count("sliding_window", 128)
    config.ignore("index_n_heads", "index_topk")
    ratios = config.required("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) < layers or not all(isinstance(ratio, int) and ratio >= 0 for ratio in ratios):
        raise refused(config.name, f"its config lists compress_ratios that do not cover num_hidden_layers = {layers}")

    def layer(ratio: int) -> LayerKV:
        index = config.count("index_head_dim") if ratio == _INDEXED else 0
        entry = dim if ratio else 0
        return LayerKV(1, dim, 0, window, latent=True, index_dim=index, compressed_dim=entry, entry_tokens=ratio or 1)

    return config.model(config.count("num_attention_heads"), [layer(ratio) for ratio in ratios[:layers]])
