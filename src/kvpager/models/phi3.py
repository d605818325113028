"""Phi-3 and Phi-4: full attention, or one window for all layers."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import ConfigReader, family

__all__ = ["phi3"]


@family("phi3")
def phi3(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: as many KV heads as query heads, no window, ``head_dim`` = hidden size by heads."""
    window = None if config.get("sliding_window") is None else config.count("sliding_window")
    heads = config.heads()
    return config.model(heads.q, [heads.layer(window)] * config.count("num_hidden_layers"))
