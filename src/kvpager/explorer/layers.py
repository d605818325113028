"""A model's layers by what they keep of a sequence."""

from __future__ import annotations

from dataclasses import replace

from kvpager.core import KVGeometry, LayerKV

__all__ = ["by_kind", "example_layer", "kind_of"]


def kind_of(layer: LayerKV) -> str:
    """Return in words what a layer keeps."""
    if layer.shares_layer is not None:
        return "reads an earlier layer's KV"
    if not layer.num_kv_heads:
        return "state of constant size" if layer.state_bytes else "no attention"
    kept = "latent vector" if layer.latent else "full attention"
    if layer.window_tokens is not None:
        kept = f"window of {layer.window_tokens:,} tokens"
    beside = {"compressed entries": layer.compressed_dim, "index keys": layer.index_dim, "state": layer.state_bytes}
    return " + ".join([kept, *(name for name, size in beside.items() if size)])


def by_kind(geometry: KVGeometry) -> dict[str, KVGeometry]:
    """Return the layers of each kind as a geometry of their own, in the order in which the kinds first occur."""
    kinds = dict.fromkeys(map(kind_of, geometry.layers))
    return {kind: replace(geometry, layers=tuple(one for one in geometry.layers if kind_of(one) == kind)) for kind in kinds}


def example_layer(geometry: KVGeometry) -> LayerKV | None:
    """Return the first layer with full attention and KV of its own, else the first with any KV; None without one."""
    full = [geometry.layers[number] for number in geometry.full_layers]
    return next(iter([*full, *(one for one in geometry.layers if one.elements_per_token)]), None)
