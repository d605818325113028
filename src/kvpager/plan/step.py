"""The decode step of one replica: where its KV lies, what a step reads from where, and how long that takes.

Written once against `Evaluator`: the plan runs it with quantities, the sweep with arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kvpager.analysis import capacity, steptime, transfer
from kvpager.analysis.capacity import Values
from kvpager.plan.assumptions import Assumptions
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Evaluator, asked
from kvpager.plan.load import Load, Machine
from kvpager.plan.memory import Memory

__all__ = ["Step", "decode_step", "tier_shares"]

T = TypeVar("T")


TITLES = {"dram": "host DRAM", "cxl": "CXL memory", "nvme": "NVMe"}


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """A decode step of one replica; times in seconds, bytes of one step."""

    hbm_share: T
    read_bytes: T
    miss_share: T
    miss_bytes: T
    compute_s: T
    memory_s: T
    transfer_s: T
    exposed_s: T
    step_s: T
    tier_bytes: tuple[T, ...]


def tier_shares(hbm_share: Values, total_bytes: Values, capacities: list[Values]) -> list[Values]:
    """Share of the KV outside HBM that each lower tier serves: the fastest is filled first, the last takes the rest.

    Parameters
    ----------
    hbm_share : float or array
        Share of all KV that HBM holds.
    total_bytes : float or array
        All KV.
    capacities : list of float or array
        Of the lower tiers in bytes, fastest first.

    Returns
    -------
    list of float or array
        One a tier, summing to 1.
    """
    outside = np.maximum((1.0 - hbm_share) * total_bytes, 1e-9)
    left: Values = np.ones_like(outside)
    shares: list[Values] = []
    for size in capacities[:-1]:
        share = np.minimum(left, size / outside)
        shares.append(share)
        left = left - share
    return [*shares, left]


def _hits(hbm_share: Values, read: Values, placement: Values) -> Values:
    """Share of the read bytes found in HBM: unrelated placement gives its share of all KV, the bounds are sets' overlaps."""
    best = np.minimum(1.0, hbm_share / read)
    worst = np.maximum(0.0, (hbm_share - (1.0 - read)) / read)
    met: Values = hbm_share + np.where(
        np.asarray(placement) >= 0, placement * (best - hbm_share), -np.asarray(placement) * (worst - hbm_share)
    )
    return met


def decode_step(
    of: Evaluator[T],
    load: Load,
    machine: Machine[T],
    memory: Memory[T],
    assumed: Assumptions,
    context: T,
    users: T,
    read: T,
    tiered: bool,
    hit_curve: HitCurve | None = None,
) -> Step[T]:
    """Time of one step with `users` sequences of `context` tokens that read a share `read` of their full-attention KV."""
    total = of.step(
        "full_kv_bytes", "B", "users x full_kv_bytes_per_user", lambda n, each: n * each, users, memory.full_kv_bytes_per_user
    )
    hbm_share = _hbm_share(of, load, memory, users, total, read) if tiered else of.given(asked("hbm_share", 1.0, "1"))
    miss_share = _miss_share(of, hbm_share, read, assumed, hit_curve)
    read_bytes = of.step(
        "read_bytes", "B", "read_fraction x full_kv_bytes", lambda r, kv: r * kv, read, total, source="mission row 41"
    )
    miss_bytes = of.step("miss_bytes", "B", "read_bytes x miss_share", lambda a, b: a * b, read_bytes, miss_share)
    compute = _compute(of, load, machine, assumed, context, users, read)
    reading = _memory_time(of, load, machine, memory, assumed, users, read_bytes)
    layer_s, tier_bytes = _layer_transfer(of, load, machine, assumed, hbm_share, total, miss_bytes)
    layers = float(max(load.full_layers, 1))
    moved = of.step("transfer_s", "s", f"{load.full_layers} layers x layer_transfer_s", lambda one: layers * one, layer_s)
    exposed = of.step(
        "exposed_s",
        "s",
        f"{load.full_layers} x max(0, layer_transfer_s - what the layer's own time hides)",
        lambda one, busy, c, r, ahead: steptime.exposed_s(
            one, np.where(np.asarray(r) >= 1.0, 1.0, ahead) * np.maximum(busy, c) / layers, layers
        ),
        layer_s,
        reading,
        compute,
        read,
        of.given(assumed.lookahead),
        source="mission row 41; a dense read is known beforehand",
    )
    step = of.step(
        "step_s", "s", "max(compute_s, memory_s) + exposed_s", steptime.step_s, compute, reading, exposed, source="mission row 41"
    )
    return Step(hbm_share, read_bytes, miss_share, miss_bytes, compute, reading, moved, exposed, step, tier_bytes)


def _miss_share(of: Evaluator[T], hbm_share: T, read: T, assumed: Assumptions, hit_curve: HitCurve | None) -> T:
    """Miss share by HBM share: from a curve (shares ascending, byte hit ratios), or from how sets can overlap."""
    if hit_curve is None:
        return of.step(
            "miss_share",
            "1",
            "1 - share of the read bytes that HBM holds",
            lambda share, r, placement: 1.0 - _hits(share, r, placement),
            hbm_share,
            read,
            of.given(assumed.placement),
            source="overlap of two sets: unrelated; best and worst case",
        )
    shares, ratios = [0.0, *hit_curve.hbm_shares, 1.0], [0.0, *hit_curve.byte_hit_ratios, 1.0]
    return of.step(
        "miss_share",
        "1",
        f"1 - byte hit ratio at hbm_share, between the points {hit_curve.points}",
        lambda share, r: 1.0 - np.interp(share, shares, ratios),
        hbm_share,
        read,
        source=hit_curve.source,
    )


def _hbm_share(of: Evaluator[T], load: Load, memory: Memory[T], users: T, total: T, read: T) -> T:
    staging = of.step(
        "staging_bytes",
        "B",
        f"what one of {load.full_layers} layers reads: read_fraction x full_kv_bytes / layers",
        lambda r, kv: r * kv / max(load.full_layers, 1),
        read,
        total,
        source="law 6: what is fetched must lie somewhere",
    )
    return of.step(
        "hbm_share",
        "1",
        "(hbm_left - users x pinned - staging) / full_kv_bytes, in [0, 1]",
        lambda left, n, pinned, stage, kv: np.clip(
            (left - n * pinned - np.minimum(stage, left)) / np.maximum(kv, 1e-9), 0.0, 1.0
        ),
        memory.hbm_left_bytes,
        users,
        memory.pinned_bytes_per_user,
        staging,
        total,
        source="mission row 4",
    )


def _compute(of: Evaluator[T], load: Load, machine: Machine[T], assumed: Assumptions, context: T, users: T, read: T) -> T:
    def flops(n: Values, params: Values, tokens: Values, r: Values) -> Values:
        total = steptime.linear_flops(params, 1.0)
        for group in load.groups:
            kept = np.minimum(tokens, group.window_tokens) * (r if np.isinf(group.window_tokens) else 1.0)
            total = total + steptime.attention_flops(kept, group.layers, load.q_heads, group.attended_dim)
        return n * total

    operations = of.step(
        "step_flops",
        "FLOP",
        f"users x (2 active_params + 4 x {load.q_heads} query heads x dim x layers x tokens read)",
        flops,
        users,
        of.given(load.active_params),
        context,
        read,
        source="mission row 47",
    )
    return of.step(
        "compute_s",
        "s",
        "step_flops / (peak_flops_per_s x mfu)",
        steptime.compute_s,
        operations,
        machine.flops_per_s,
        of.given(assumed.mfu),
        source="note 004 table 2",
    )


def _memory_time(
    of: Evaluator[T], load: Load, machine: Machine[T], memory: Memory[T], assumed: Assumptions, users: T, read_bytes: T
) -> T:
    """Weights once, KV at its own rate, score metadata read and written."""
    weights = memory.weights_bytes
    if load.active_params.value < load.params.value:
        weights = of.step(
            "weights_read_bytes",
            "B",
            "weights_bytes x (1 - (1 - active / all)^users)",
            lambda size, part, whole, n: size * (1.0 - (1.0 - part / whole) ** n),
            weights,
            of.given(load.active_params),
            of.given(load.params),
            users,
            source="experts touched by independent draws; real routing is skewed",
        )
    kv = of.step(
        "kv_read_bytes",
        "B",
        "read_bytes + users x (local KV + 2 x metadata)",
        lambda of_full, n, local, meta: of_full + n * (local + capacity.metadata_traffic_bytes(meta)),
        read_bytes,
        users,
        memory.local_kv_bytes_per_user,
        memory.metadata_bytes_per_user,
        source="what is fetched is staged in HBM and read there too; every score is read and written",
    )
    return of.step(
        "memory_s",
        "s",
        "weights / (hbm_bytes_per_s x hbm_efficiency) + kv_read / (hbm_bytes_per_s x kv_efficiency)",
        lambda w, k, rate, of_weights, of_kv: steptime.memory_s(w, k, rate * of_weights, rate * of_kv),
        weights,
        kv,
        machine.hbm_bytes_per_s,
        machine.hbm_efficiency,
        of.given(assumed.kv_efficiency),
        source="mission row 41: two bandwidth terms",
    )


def _layer_transfer(
    of: Evaluator[T], load: Load, machine: Machine[T], assumed: Assumptions, hbm_share: T, total: T, miss_bytes: T
) -> tuple[T, tuple[T, ...]]:
    """Time of one layer's fetches, tiers in parallel behind one upstream link; bytes of a step by tier."""
    if not machine.tiers or not load.full_layers:
        nothing = of.given(asked("layer_transfer_s", 0.0, "s"))
        return nothing, ()
    layers = float(max(load.full_layers, 1))
    piece = load.full_bytes_per_token / layers
    capacities = [tier.capacity_bytes for tier in machine.tiers]
    times, moved = [], []
    for number, tier in enumerate(machine.tiers):
        amount = of.step(
            f"{tier.name}_miss_bytes",
            "B",
            f"miss_bytes x share that {TITLES.get(tier.name, tier.name)} serves: the fastest tier is filled first",
            lambda missed, share, kv, *sizes, n=number: missed * tier_shares(share, kv, list(sizes))[n],
            miss_bytes,
            hbm_share,
            total,
            *capacities,
            source="tier shares follow from capacities, they are never typed in",
        )
        moved.append(amount)
        times.append(
            of.step(
                f"{tier.name}_layer_s",
                "s",
                f"bytes / {layers:g} layers / rate + t0 x rounds of in_flight pieces (a block of a layer each)",
                lambda amount, rate, t0, together, block: _layer_fetch(amount / layers, rate, t0, together, piece * block),
                amount,
                tier.read_bytes_per_s,
                tier.t0_s,
                of.given(assumed.in_flight),
                of.given(assumed.block_tokens),
                source="mission row 46",
            )
        )
    if len(times) == 1 or machine.upstream_bytes_per_s is None:
        return times[0], tuple(moved)
    slowest = of.step(
        "layer_transfer_s",
        "s",
        "max over the tiers, and all bytes over the shared upstream link",
        lambda missed, rate, *each: np.maximum.reduce([*np.broadcast_arrays(*each, missed / layers / rate)]),
        miss_bytes,
        machine.upstream_bytes_per_s,
        *times,
        source="mission rows 8 and 41",
    )
    return slowest, tuple(moved)


def _layer_fetch(size: Values, rate: Values, t0: Values, together: Values, piece: Values) -> Values:
    """Fetch of one layer: fixed times overlap `together` at a time, at least one where anything moves."""
    pieces = size / piece
    rounds = np.minimum(pieces, np.maximum(1.0, pieces / together))
    return transfer.fetch_s(size, rate, rounds, t0)
