"""One row of a replay's result: every ratio with its definition and its bounds beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kvpager.core import TIER_NAMES
from kvpager.evidence import Evidence
from kvpager.policies import CLAIRVOYANT, make_policy
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.replay.attention import LEAST_METADATA_BYTES_PER_UNIT, Replay, capacity_units
from kvpager.replay.bounds import dense_bound, interval_bound, top_mass_oracle
from kvpager.replay.stream import Stream
from kvpager.replay.tally import Counts

__all__ = ["Case", "run_case"]


@dataclass(frozen=True)
class Case:
    """What to replay.

    Parameters
    ----------
    policy : str
        Written form, e.g. ``"ema+sink:100"``.
    hbm_fraction : float
        Payload of tiers 0 and 1 as a share of all KV.
    pool : {"global", "layer", "equal"}
        Who shares it.
    prefetcher : str, optional
        Written form, e.g. ``"blend"``.
    prefetch_share : float
        Most units prefetched in a step, as a share of what HBM holds.
    dram_fraction : float
        Payload of tier 2 as a share of all KV.
    granularity : {"head", "layer"}
        What has residency of its own.
    fold : {"mean", "max"}
        How a ``"layer"`` unit's heads become one mass.
    bound : bool
        Whether to compute the case's own bound too.
    seed : int
        Of the ties.
    span_steps : int
        Steps of a span for which counts are given apart, for intervals within a text; 0 = none.
    """

    policy: str
    hbm_fraction: float
    pool: str = "global"
    prefetcher: str | None = None
    prefetch_share: float = 0.01
    dram_fraction: float = 0.0
    granularity: str = "head"
    fold: str = "mean"
    bound: bool = True
    seed: int = 0
    span_steps: int = 0


def run_case(stream: Stream, case: Case) -> dict[str, Any]:
    """Replay `case` over `stream` and return its row, ready for JSON.

    Parameters
    ----------
    stream : Stream
        Made with the case's granularity and fold.
    case : Case
        What to replay.

    Returns
    -------
    dict
        Counts, ratios (micro-averages after the warm-up), bounds and definitions.

    Raises
    ------
    UnknownName, BadInput, CapacityError
        For a policy, prefetcher or size that cannot be used.
    """
    units = capacity_units(stream, case.hbm_fraction, case.pool)
    replay = _replay(stream, case, units, case.policy)
    counts = replay.run()
    recording, setting = stream.recording, stream.setting
    row: dict[str, Any] = {
        "policy": case.policy,
        "pool": case.pool,
        "granularity": setting.granularity,
        "fold": setting.fold,
        "hbm_fraction": case.hbm_fraction,
        "capacity_units": units,
        "units": stream.units,
        "selector": type(stream.selector).__name__,
        "access": stream.selector.describe(),
        "clock": setting.clock,
        "observe": setting.observe,
        "warmup_steps": replay.warmup,
        "steps": counts.steps,
        "seed": case.seed,
    }
    row |= _ratios(counts, stream)
    if case.span_steps:
        row["spans"] = _spans(counts, case.span_steps)
    if case.prefetcher is not None:
        row["prefetcher"] = case.prefetcher
        row["prefetch"] = _prefetch_quality(counts, stream)
    row |= {
        "pinned_share": _pinned_share(replay),
        "staging_fraction": replay.budget.staging_bytes / recording.kv_bytes,
        "metadata_fraction": _metadata_bytes(stream) / recording.kv_bytes,
        "dense_bound": dense_bound(stream, units, replay.warmup),
        "top_mass_oracle": _oracle(stream, units, case.pool, replay.warmup),
        "realisable": setting.observe == "read" and not replay.policy.needs & CLAIRVOYANT,
        "evidence": Evidence.SIMULATED.label,
        "labels": [Evidence.SIMULATED.label, Evidence.MEASURED.label],
    }
    if case.bound:
        row |= _bound(stream, case, units, row, counts)
    return row


def _replay(stream: Stream, case: Case, units: int, policy: str) -> Replay:
    prefetcher = None if case.prefetcher is None else configure(PREFETCHERS, case.prefetcher)
    return Replay(
        stream,
        make_policy(policy),
        units,
        pool=case.pool,
        prefetcher=prefetcher,
        prefetch_share=case.prefetch_share,
        dram_units=int(case.dram_fraction * stream.units),
        seed=case.seed,
    )


def _ratios(counts: Counts, stream: Stream) -> dict[str, Any]:
    per_head = counts.mass / counts.steps
    misses = counts.unit_accesses - counts.unit_hits
    return {
        "accesses": counts.accesses,
        "block_hits": counts.hits,
        "block_hit_ratio": counts.hits / max(counts.accesses, 1),
        "byte_hit_ratio": counts.unit_hits / max(counts.unit_accesses, 1),
        "mass_hit_ratio": float(per_head.mean()),
        "step_hit_ratio": counts.heads_complete / counts.heads,
        "demand_only_hit_ratio": (counts.hits - counts.early_hits) / max(counts.accesses, 1),
        "read_mass": stream.read_mass,
        "p5_head_mass": float(np.percentile(per_head, 5)),
        "per_tier": {name: int(counts.served[tier]) for tier, name in TIER_NAMES.items()},
        "fetched_units_per_step": counts.fetched / counts.steps,
        "fetched_bytes_per_step": counts.fetched * stream.unit_bytes / counts.steps,
        "missed_units_per_step": misses / counts.steps,
        "moves_per_step": counts.kept / counts.steps,
        "dropped_per_step": (counts.fetched - counts.kept) / counts.steps,
    }


def _spans(counts: Counts, steps: int) -> dict[str, list[float]]:
    """Accesses, hits and mean mass of each whole span of `steps`; a rest at the end is left out."""
    spans = counts.steps // steps
    parts = counts.by_step[:, : spans * steps].reshape(3, spans, steps)
    accesses, hits = parts[:2].sum(axis=2).tolist()
    return {"accesses": accesses, "block_hits": hits, "mass_hit_ratio": parts[2].mean(axis=1).tolist()}


def _prefetch_quality(counts: Counts, stream: Stream) -> dict[str, Any]:
    misses = counts.unit_accesses - counts.unit_hits
    return {
        "issued": counts.prefetched,
        "used": counts.prefetched_used,
        "late": counts.late,
        "precision": counts.prefetched_used / max(counts.prefetched, 1),
        "coverage": counts.prefetched_used / max(counts.prefetched_used + misses, 1),
        "wasted_bytes": max(counts.prefetched - counts.prefetched_used, 0) * stream.unit_bytes,
    }


def _metadata_bytes(stream: Stream) -> int:
    """Page table, flags and scores of every unit, and the key summaries if the selector reads them."""
    recording = stream.recording
    metadata = stream.units * LEAST_METADATA_BYTES_PER_UNIT
    if "bound" in stream.selector.needs:
        layer = recording.header.geometry.layers[recording.header.layers[0]]
        heads = recording.blocks * len(recording.header.layers) * recording.header.num_kv_heads
        metadata += heads * 2 * layer.k_dim * recording.header.geometry.dtype_bytes
    return metadata


def _pinned_share(replay: Replay) -> float:
    """Share of HBM's units that the policy pins at the end."""
    if not np.isfinite(replay.policy.pinned_from):
        return 0.0
    return replay.pager.pinned() / int(replay.pager.pools.capacity.sum())


@lru_cache(maxsize=64)
def _belady(stream: Stream, units: int, pool: str, pins: tuple[str, ...], seed: int) -> float:
    """Block hit ratio of the clairvoyant policy with the same pins; remembered, as many cases share it."""
    counts = Replay(stream, make_policy("+".join(["belady", *pins])), units, pool=pool, seed=seed).run()
    return counts.hits / max(counts.accesses, 1)


_interval = lru_cache(maxsize=64)(
    lambda stream, units, pool, warmup, sink: interval_bound(stream, units, pool, warmup, sink_tokens=sink)
)
_oracle = lru_cache(maxsize=64)(top_mass_oracle)


def _bound(stream: Stream, case: Case, units: int, row: Mapping[str, Any], counts: Counts) -> dict[str, Any]:
    """The case's own bound, and with it which misses were compulsory, of capacity, or of the policy.

    Every unit is born in HBM, so an unbounded HBM would miss nothing: no miss is compulsory here.
    """
    _, *wrappers = case.policy.split("+")
    sink = next((int(w.partition(":")[2] or 100) for w in wrappers if w.startswith("sink")), 0)
    if stream.setting.granularity == "layer":
        bound, kind = _interval(stream, units, case.pool, row["warmup_steps"], sink), "interval"
    else:
        pins = [wrapper for wrapper in wrappers if wrapper.startswith(("sink", "recent"))]
        bound, kind = _belady(stream, units, case.pool, tuple(pins), case.seed), "belady"
    if case.prefetcher is not None:
        bound, kind = min(1.0, bound + counts.prefetched_used / max(counts.accesses, 1)), f"{kind}+prefetch"
    unavoidable = round((1 - bound) * counts.accesses)
    misses = counts.accesses - counts.hits
    return {
        "bound": bound,
        "bound_kind": kind,
        "misses": {"compulsory": 0, "capacity": min(unavoidable, misses), "policy": max(misses - unavoidable, 0)},
    }
