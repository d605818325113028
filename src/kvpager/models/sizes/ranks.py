"""What one rank of several holds: tensor parallelism splits or duplicates KV heads, pipeline stages split layers."""

from __future__ import annotations

from dataclasses import replace

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import ModelError

__all__ = ["rank_geometries", "stage_layers"]


def stage_layers(num_layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage, as vLLM splits them: a remainder goes to the stages before the last, backwards."""
    counts = [num_layers // stages] * stages
    for extra in range(num_layers % stages):
        counts[-2 - extra] += 1
    return counts


def rank_geometries(geometry: KVGeometry, tp: int = 1, pp: int = 1) -> tuple[KVGeometry, ...]:
    """What one tensor-parallel rank of each pipeline stage holds; the ranks of a stage are alike.

    KV heads are split over ranks, or duplicated when there are more ranks than heads. Latent vectors and index keys
    are replicated: every rank holds all of them. States are split. A layer that reads another's KV keeps a copy of its
    own if that one is in another stage.

    Parameters
    ----------
    geometry : KVGeometry
        Of the whole model.
    tp, pp : int
        Tensor- and pipeline-parallel sizes.

    Returns
    -------
    tuple of KVGeometry
        One a stage.

    Raises
    ------
    ModelError
        If heads do not divide over the ranks, or there are more stages than layers.
    """
    if tp < 1 or pp < 1 or pp > len(geometry.layers):
        raise ModelError(
            f"model {geometry.name!r} cannot be split tp = {tp} by pp = {pp}: both start at 1, "
            f"and its {len(geometry.layers)} layers make at most as many stages"
        )
    if geometry.num_q_heads % tp:
        raise ModelError(f"model {geometry.name!r} has {geometry.num_q_heads} query heads, which tp = {tp} does not divide")
    parts = [_share(geometry.name, layer, tp) for layer in geometry.layers]
    stages, first = [], 0
    for count in stage_layers(len(parts), pp):
        layers = _rehome(parts[first : first + count], first)
        stages.append(replace(geometry, layers=layers, num_q_heads=geometry.num_q_heads // tp))
        first += count
    return tuple(stages)


def _share(name: str, layer: LayerKV, tp: int) -> LayerKV:
    heads = layer.num_kv_heads
    if not layer.latent and heads:
        if heads % tp and tp % heads:
            raise ModelError(f"model {name!r} has {heads} KV heads, which tp = {tp} neither divides nor duplicates evenly")
        layer = replace(layer, num_kv_heads=max(1, heads // tp))
    if layer.state_bytes:
        if layer.state_heads % tp:
            raise ModelError(f"model {name!r} has states of {layer.state_heads} heads, which tp = {tp} does not divide")
        layer = replace(layer, state_bytes=layer.state_bytes // tp, state_heads=layer.state_heads // tp)
    return layer


def _rehome(layers: list[LayerKV], first: int) -> tuple[LayerKV, ...]:
    """Number `shares_layer` within the stage; the first of several that share with another stage keeps the KV."""
    homes: dict[int, int] = {}
    moved = []
    for number, layer in enumerate(layers):
        if (home := layer.shares_layer) is not None:
            here = home - first if home >= first else homes.setdefault(home, number)
            layer = replace(layer, shares_layer=None if here == number else here)
        moved.append(layer)
    return tuple(moved)
