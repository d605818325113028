"""Llama 2 and 3, SmolLM2 and their kin: full attention in every layer."""

from __future__ import annotations

from kvpager.core import KVGeometry
from kvpager.models.base import FULL, ConfigReader, family, refused

__all__ = ["llama"]


@family("llama")
def llama(config: ConfigReader) -> KVGeometry:
    """Defaults of transformers: as many KV heads as query heads, ``head_dim`` = hidden size by heads."""
    windows = config.windows([FULL] * config.count("num_hidden_layers"), None)
    if any(windows) or config.get("sliding_window"):
        raise refused(config.name, "its config asks for sliding windows, which family 'llama' does not have")
    heads = config.heads()
    return config.model(heads.q, [heads.layer()] * len(windows))
