"""The model and the machine as the step model sees them: a few groups of equal layers, a few rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from kvpager.analysis import steptime
from kvpager.analysis.capacity import Values
from kvpager.core import KVGeometry
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity, propagate
from kvpager.hardware import System, TierPath
from kvpager.models.facts import ModelFacts
from kvpager.models.sizes import kv_dtype, rank_geometries
from kvpager.models.sizes.architectural import layer_bytes
from kvpager.plan.evaluate import Evaluator

__all__ = ["Group", "Load", "Machine", "Tier", "groups_of", "load_of", "machine_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that behave alike.

    Parameters
    ----------
    layers : int
        How many.
    bytes_per_token : float
        KV that a token adds in all of them together.
    window_tokens : float
        Window; inf for full attention.
    attended_dim : float
        Mean of the widths of key and value that one query head works on.
    """

    layers: int
    bytes_per_token: float
    window_tokens: float
    attended_dim: float


@dataclass(frozen=True, slots=True)
class Load:
    """A model to be served.

    Parameters
    ----------
    name : str
        As resolved.
    params, active_params : Quantity
        Parameters; those that one token uses.
    weight_bytes_per_param : Quantity
        Bytes of a weight.
    groups : tuple of Group
        All layers with attention.
    entry_bytes_per_token : float
        Index keys and compressed entries: kept for every token, read whole at every step.
    state_bytes : float
        Constant bytes of a sequence.
    q_heads, kv_heads : int
        Heads of a layer; the most that any layer has.
    max_context_tokens : int, optional
        The model's own limit.
    """

    name: str
    params: Quantity
    active_params: Quantity
    weight_bytes_per_param: Quantity
    groups: tuple[Group, ...]
    entry_bytes_per_token: float
    state_bytes: float
    q_heads: int
    kv_heads: int
    max_context_tokens: int | None = None

    @property
    def full_layers(self) -> int:
        """Layers with full attention: those that tiering is about."""
        return sum(group.layers for group in self.groups if math.isinf(group.window_tokens))

    @property
    def full_bytes_per_token(self) -> float:
        """KV bytes a token adds in the layers with full attention."""
        return sum(group.bytes_per_token for group in self.groups if math.isinf(group.window_tokens))

    def pass_flops(self, active_params: Values, tokens: Values, prefix_tokens: Values = 0.0) -> Values:
        """Operations of a pass over `tokens` behind `prefix_tokens` cached ones, each layer by its window (mission row 47)."""
        total = steptime.linear_flops(active_params, tokens)
        for group in self.groups:
            pairs = steptime.causal_pairs(tokens, prefix_tokens, group.window_tokens)
            total = total + steptime.attention_flops(pairs, group.layers, self.q_heads, group.attended_dim)
        return total

    @property
    def local(self) -> tuple[Group, ...]:
        """Layers with a window: their KV stays in HBM."""
        return tuple(group for group in self.groups if not math.isinf(group.window_tokens))


def groups_of(geometry: KVGeometry, dtype: str = "bf16", tp: int = 1) -> tuple[tuple[Group, ...], float]:
    """Collect a geometry's layers by window, as `tp` ranks hold them together: heads may be duplicated.

    Parameters
    ----------
    geometry : KVGeometry
        The whole model's.
    dtype : str
        Storage of KV, by a name of `KV_DTYPES`.
    tp : int
        Ranks that share one copy of the model.

    Returns
    -------
    tuple of (tuple of Group, float)
        Windows ascending, full attention last; bytes a token of index keys and compressed entries, which every step
        reads whole.
    """
    stored = kv_dtype(dtype)
    rank = rank_geometries(geometry, tp)[0]
    found: dict[float, list[tuple[float, float]]] = {}
    entries = 0.0
    for layer in rank.layers:
        token, entry = layer_bytes(layer, stored, stored)
        entries += tp * entry / layer.entry_tokens
        if layer.num_kv_heads:
            window = math.inf if layer.window_tokens is None else float(layer.window_tokens)
            wide = layer.k_dim if layer.v_dim == 0 else (layer.k_dim + layer.v_dim) / 2
            found.setdefault(window, []).append((float(tp * token), wide))
    groups = tuple(
        Group(len(layers), sum(size for size, _ in layers), window, sum(wide for _, wide in layers) / len(layers))
        for window, layers in sorted(found.items())
    )
    return groups, entries


def load_of(facts: ModelFacts, weights_dtype: str = "bf16", kv_dtype_name: str = "bf16", tp: int = 1) -> Load:
    """Describe a model as the planner needs it.

    Parameters
    ----------
    facts : ModelFacts
        From `kvpager.models.resolve`.
    weights_dtype, kv_dtype_name : str
        Storage of weights and of KV, names of `KV_DTYPES`.
    tp : int
        Accelerators that share one copy.

    Returns
    -------
    Load
        Bytes are those of all `tp` ranks together.

    Raises
    ------
    BadInput
        If the number of parameters is not known.
    """
    if facts.params_total is None:
        raise BadInput(
            f"model {facts.name!r}: its config does not say how many parameters it has, so its weights have no size: "
            "give --params, for example --params 8.03e9"
        )
    stored = kv_dtype(weights_dtype)
    weight = Quantity(stored.bits / 8, "B", frozenset({Evidence.ANALYTICAL}), "", f"{weights_dtype}", "weight_bytes_per_param")
    groups, entries = groups_of(facts.geometry, kv_dtype_name, tp)
    return Load(
        facts.name,
        replace(facts.params_total, name="params"),
        replace(facts.params_active or facts.params_total, name="active_params"),
        weight,
        groups,
        entries,
        float(facts.geometry.state_bytes),
        facts.geometry.num_q_heads,
        max((layer.num_kv_heads for layer in facts.geometry.layers), default=0),
        facts.geometry.max_context_tokens,
    )


@dataclass(frozen=True, slots=True)
class Tier(Generic[T]):
    """A tier below HBM, as one replica of the model sees it."""

    name: str
    capacity_bytes: T
    read_bytes_per_s: T
    t0_s: T


@dataclass(frozen=True, slots=True)
class Machine(Generic[T]):
    """A replica's share of a system."""

    hbm_bytes: T
    hbm_bytes_per_s: T
    hbm_efficiency: T
    flops_per_s: T
    tiers: tuple[Tier[T], ...]
    upstream_bytes_per_s: T | None


def machine_of(of: Evaluator[T], system: System, piece_bytes: float = 0.0) -> Machine[T]:
    """Divide a system among its replicas.

    Parameters
    ----------
    of : Evaluator
        What to compute with.
    system : System
        From the catalogue.
    piece_bytes : float
        Bytes of one transfer, for media whose rate by size is known; 0 = sustained rates.

    Returns
    -------
    Machine
        Rates and capacities of one replica; tiers from the fastest down.
    """
    of_one, tp, replicas = system.accelerator, float(system.tp), float(system.replicas)

    def grouped(name: str, quantity: Quantity) -> T:
        if system.tp == 1:
            return of.given(quantity)
        return of.step(name, quantity.unit, f"{system.tp} x {quantity.name}", lambda one: tp * one, of.given(quantity))

    def shared(name: str, quantity: Quantity) -> T:
        if system.replicas == 1:
            return of.given(quantity)
        return of.step(
            name, quantity.unit, f"{quantity.name} / {system.replicas}", lambda all_: all_ / replicas, of.given(quantity)
        )

    def tier_of(path: TierPath) -> Tier[T]:
        latency = path.latency_s() or Quantity(0.0, "s", name=f"{path.name} latency_s", source="not known, counted as none")
        return Tier(
            path.name,
            shared(f"{path.name}_bytes", path.capacity_bytes()),
            shared(f"{path.name}_bytes_per_s", _rate(system, path, piece_bytes)),
            of.given(latency),
        )

    paths = sorted(system.tiers, key=lambda path: path.name == "nvme")
    eight_bit = of_one.fp8_flops_per_s if system.weights_dtype == "fp8" else None
    upstream = paths[0].limits()["upstream"] if len(paths) > 1 else None
    return Machine(
        grouped("hbm_bytes", of_one.hbm_bytes),
        grouped("hbm_bytes_per_s", of_one.hbm_bytes_per_s),
        of.given(of_one.hbm_efficiency),
        grouped("peak_flops_per_s", eight_bit or of_one.bf16_flops_per_s),
        tuple(map(tier_of, paths)),
        None if upstream is None else shared("upstream_bytes_per_s", upstream),
    )


def _rate(system: System, path: TierPath, piece_bytes: float) -> Quantity:
    """Read rate of a tier's path in pieces of that size: the path's limit, or the media's at the size if that is less."""
    sustained = system.bandwidth(path.name)
    if not path.medium.read_by_size or piece_bytes <= 0:
        return sustained
    return propagate(
        f"{path.name} read bandwidth in pieces of {piece_bytes:,.0f} B",
        "B/s",
        f"min(path, {path.count} x medium at that size)",
        lambda whole, one: min(whole, path.count * one),
        [sustained, path.medium.read_at(piece_bytes)],
        source="mission row 46: bandwidth(size)",
    )
