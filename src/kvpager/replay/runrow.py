"""Rows of a run's replay: what the run counted, or what a run with another policy or size would have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvpager.core import TIER_NAMES
from kvpager.evidence import Evidence
from kvpager.policies import CLAIRVOYANT
from kvpager.replay.run import RunResult, replay_run
from kvpager.traces.run import RunRecording
from kvpager.traces.runcounts import RunCounts

__all__ = ["RunAsk", "describe_run", "run_row", "run_rows"]


@dataclass(frozen=True)
class RunAsk:
    """What to replay of a run; None = as recorded.

    Parameters
    ----------
    policy : str, optional
        Written form.
    hbm_fraction : float, optional
        Payload of tiers 0 and 1 as a share of all KV: of the most units that were alive at once.
    pool : {"global", "layer", "equal"}, optional
        Who shares it.
    prefetcher : str, optional
        Written form; ``"none"`` for none.
    dram_fraction : float, optional
        Payload of tier 2 as a share of all KV.
    seed : int, optional
        Of the ties.
    """

    policy: str | None = None
    hbm_fraction: float | None = None
    pool: str | None = None
    prefetcher: str | None = None
    dram_fraction: float | None = None
    seed: int | None = None


def run_rows(
    path: Path, asks: Sequence[RunAsk], *, jobs: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Replay the run at `path` for each of `asks`; rows come back in their order.

    Parameters
    ----------
    path : Path
        A run recording.
    asks : sequence of RunAsk
        What to replay.
    jobs : int
        Processes; 0 = one a core.
    progress : callable, optional
        Called with (done, total).

    Raises
    ------
    TraceError, BadInput, CapacityError, InvariantError
        As reading and replaying the run do.
    """
    there = path.absolute()  # a worker may have been started in another folder
    results: Iterable[dict[str, Any]]
    if jobs == 1 or len(asks) < 4:
        results = (_row(there, ask) for ask in asks)
    else:
        from joblib import Parallel, delayed

        results = Parallel(n_jobs=jobs or -1, return_as="generator", batch_size=1)(delayed(_row)(there, ask) for ask in asks)
    rows = []
    for row in results:
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(asks))
    return rows


def run_row(recording: RunRecording, ask: RunAsk) -> dict[str, Any]:
    """Replay a run once and return its row, ready for JSON.

    Parameters
    ----------
    recording : RunRecording
        The run.
    ask : RunAsk
        What to replay of it.

    Returns
    -------
    dict
        Counts and ratios over the whole run, without warm-up; ``log_parity`` with the moves that came out as recorded, where
        the run's own settings were replayed; ``bound`` where each unit is asked for once a demand.
    """
    found = replay_run(
        recording, policy=ask.policy, hbm_units=_units(recording, ask.hbm_fraction), pool=ask.pool, prefetcher=ask.prefetcher,
        dram_units=_units(recording, ask.dram_fraction), seed=ask.seed,
    )  # fmt: skip
    header, case, policy = recording.header, found.case, found.pager.policy
    row: dict[str, Any] = {
        "policy": case.policy,
        "pool": case.pool,
        "granularity": header.granularity,
        "hbm_fraction": case.hbm_units / recording.units if ask.hbm_fraction is None else ask.hbm_fraction,
        "capacity_units": int(found.pager.pools.capacity.sum()),
        "dram_units": case.dram_units,
        "units": recording.units,
        "selector": header.selector,
        "access": "what the run asked for",
        "mode": header.mode,
        "clock": "layer",
        "observe": "read",
        "warmup_steps": 0,
        "seed": case.seed,
    }
    row |= _figures(found.counts, header.unit_bytes) | {"tiers": found.document["tiers"]}
    if case.prefetcher is not None:
        row["prefetcher"] = case.prefetcher
    row |= {
        "staging_fraction": header.budget.staging_bytes / (recording.units * header.unit_bytes),
        "realisable": not policy.needs & CLAIRVOYANT,
        "evidence": Evidence.SIMULATED.label,
        "labels": [Evidence.SIMULATED.label, Evidence.MEASURED.label],
    }
    if found.moves_identical is not None:
        row["log_parity"] = {"moves": found.moves_identical, "counts": recording.counts is not None}
    return row | _bound(recording, found)


def describe_run(recording: RunRecording, path: Path) -> dict[str, Any]:
    """Return where a run recording comes from and its settings, for a document's ``trace``.

    Parameters
    ----------
    recording : RunRecording
        As read from `path`.
    path : Path
        Only its name is told.
    """
    header = recording.header
    return {
        "path": path.name,
        "model": header.model,
        "mode": header.mode,
        "selector": header.selector,
        "policy": header.policy,
        "pool": header.pool,
        "prefetcher": header.prefetcher,
        "capacity_units": header.hbm_units,
        "dram_units": header.dram_units,
        "seed": header.seed,
        "lockstep": header.lockstep,
        "calls": len(recording),
        "complete": recording.counts is not None,
        "disturbances": recording.disturbances,
        "block_size": header.block_size,
        "layers": len(header.layers),
        "kv_heads": header.num_kv_heads,
        "granularity": header.granularity,
        "kv_bytes": recording.units * header.unit_bytes,
        "weights_sha256": header.weights_sha256,
        "recorded": header.recorded,
    }


def _units(recording: RunRecording, fraction: float | None) -> int | None:
    return None if fraction is None else int(fraction * recording.units + 1e-9)


def _figures(counts: RunCounts, unit_bytes: int) -> dict[str, Any]:
    steps, fetched = max(counts.steps, 1), counts.loads - counts.stream_loads
    return {
        "steps": counts.steps,
        "accesses": counts.accesses,
        "block_hits": counts.block_hits,
        "block_hit_ratio": counts.block_hits / max(counts.accesses, 1),
        "byte_hit_ratio": counts.unit_hits / max(counts.unit_accesses, 1),
        "demand_only_hit_ratio": (counts.block_hits - counts.early_hits) / max(counts.accesses, 1),
        "read_mass_hit_ratio": counts.read_mass_in_hbm / counts.read_mass if counts.read_mass else None,
        "per_tier": {name: counts.served[tier] for tier, name in TIER_NAMES.items()},
        "streamed_per_tier": {name: counts.streamed[tier] for tier, name in TIER_NAMES.items()},
        "loads": fetched,
        "kept": counts.kept,
        "evictions": counts.evictions,
        "demotions": counts.demotions,
        "backups": counts.backups,
        "prefetched": counts.prefetched,
        "fetched_units_per_step": fetched / steps,
        "fetched_bytes_per_step": fetched * unit_bytes / steps,
    }


def _bound(recording: RunRecording, found: RunResult) -> dict[str, Any]:
    """The most block hits that any policy has at this size, where units are asked for once a demand and the future is known."""
    case, counts = found.case, found.counts
    if recording.disturbances or counts.accesses != counts.unit_accesses:
        return {}
    pins = tuple(part for part in case.policy.split("+")[1:] if part.startswith(("sink", "recent")))
    bound = _belady(recording, case.hbm_units, case.pool, pins, case.seed) / max(counts.accesses, 1)
    if case.prefetcher is None:
        return {"bound": bound, "bound_kind": "belady"}
    return {"bound": min(1.0, bound + counts.early_units / max(counts.accesses, 1)), "bound_kind": "belady+prefetch"}


@lru_cache(maxsize=64)
def _belady(recording: RunRecording, units: int, pool: str, pins: tuple[str, ...], seed: int) -> int:
    policy = "+".join(["belady", *pins])
    return replay_run(
        recording, policy=policy, hbm_units=units, pool=pool, prefetcher="none", dram_units=0, seed=seed
    ).counts.block_hits


def _row(path: Path, ask: RunAsk) -> dict[str, Any]:
    done = path / "segments_done"
    return run_row(_recording(path, done.stat().st_mtime_ns if done.exists() else 0), ask)


@lru_cache(maxsize=1)
def _recording(path: Path, changed: int) -> RunRecording:
    from kvpager.traces.runstore import read_run

    return read_run(path)
