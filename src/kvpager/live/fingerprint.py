"""What a parked KV cache belongs to, in one line: a store made by one model is of no use to another."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from kvpager.live.layout import Layout

__all__ = ["FORMAT", "fingerprint", "weights_sha256"]

FORMAT = 1
"""Of what sessions and slots hold; a change that makes old ones unreadable raises it."""

_WINDOWS = ("layer_types", "sliding_window", "attention_chunk_size")


def fingerprint(loaded: Any, layout: Layout) -> str:
    """Say which model, element type and layout KV belongs to.

    Parameters
    ----------
    loaded : LoadedModel or PreTrainedModel
        The first knows the hash of its weights; for the second it is worked out.
    layout : Layout
        Of its units.

    Returns
    -------
    str
        Words ``name=value``: format, SHA-256 of the weights, element type, layout, SHA-256 of the rotary embedding's
        parameters and of the layers' windows. Two that differ name what differs.
    """
    weights, model = getattr(loaded, "weights_sha256", None), loaded
    if weights is None:
        weights = weights_sha256(model)
    else:
        model = loaded.model
    config = model.config.get_text_config(decoder=True).to_dict()
    rope = {name: value for name, value in config.items() if "rope" in name or "rotary" in name}
    windows = {name: config.get(name) for name in _WINDOWS}
    parts = {
        "format": FORMAT,
        "weights": weights[:32],
        "kv": layout.element,
        "layout": "x".join(str(part) for part in layout if not isinstance(part, str)),
        "rope": _digest(rope),
        "windows": _digest(windows),
    }
    return " ".join(f"{name}={value}" for name, value in parts.items())


def weights_sha256(model: Any) -> str:
    """Hash all weights of a model, by name, shape and type.

    Returns
    -------
    str
        Hexadecimal.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(weight.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def _digest(what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]
