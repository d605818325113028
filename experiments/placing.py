"""Placement policies replayed over a recording, each beside what the clairvoyant reach in the same pool size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.study import Study, interval
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep

__all__ = ["BELADY", "NEXT_MASS", "SPAN_STEPS", "Rows", "at", "replayed"]

BELADY, NEXT_MASS = "belady", "next-mass"
SPAN_STEPS = 16
"""Steps of a text over which an interval within it takes one value."""

Rows = dict[str, list[dict[str, Any]]]
"""Of each text."""


def replayed(study: Study, text: str, size: float, policies: Sequence[tuple[str, str]], **how: Any) -> list[dict[str, Any]]:
    """Replay `policies`, as (policy, pool), at one size, and the two clairvoyant ones in a global pool; once.

    Parameters
    ----------
    study : Study
        Has the recording.
    text : str
        Which.
    size : float
        Share of all KV that HBM holds.
    policies : sequence of (str, str)
        Written policies and their pools.
    **how
        Model, context and steps of the recording, unless they are the study's.

    Returns
    -------
    list of dict
        Rows: shares of Belady's hits and of next-mass's mass with 95 % intervals over spans of steps.
    """

    def make() -> list[dict[str, Any]]:
        asked = [(BELADY, "global"), (NEXT_MASS, "global"), *policies]
        cases = [Case(policy, size, pool, bound=False, span_steps=SPAN_STEPS) for policy, pool in asked]
        rows = sweep(Source(study.recording(text, **how)), cases, jobs=1)
        return [_row(row, rows[0], rows[1]) | {"text": text, "model": how.get("model", "smollm2")} for row in rows]

    return study.once(f"{text} {size} {policies} {sorted(how.items())}", make)


def _row(row: dict[str, Any], belady: dict[str, Any], oracle: dict[str, Any]) -> dict[str, Any]:
    keys = ("policy", "pool", "hbm_fraction", "block_hit_ratio", "mass_hit_ratio", "p5_head_mass", "steps", "realisable")
    return (
        {key: row[key] for key in keys}
        | {f"{what}_percent": 100 * row[f"{what}_units_per_step"] / row["units"] for what in ("missed", "fetched")}
        | {"moves_percent": 100 * row["moves_per_step"] / row["units"]}
        | _share("belady_share", row["block_hit_ratio"] / belady["block_hit_ratio"], row, belady, "block_hits")
        | _share("mass_share", row["mass_hit_ratio"] / oracle["mass_hit_ratio"], row, oracle, "mass_hit_ratio")
    )


def _share(name: str, whole: float, row: dict[str, Any], best: dict[str, Any], what: str) -> dict[str, float]:
    spans = interval(100 * ours / theirs for ours, theirs in zip(row["spans"][what], best["spans"][what], strict=True) if theirs)
    return {name: 100 * whole, f"{name}_low": spans.low, f"{name}_high": spans.high}


def at(rows: Sequence[dict[str, Any]], policy: str, size: float, pool: str = "global") -> dict[str, Any]:
    """The row of one policy, size and pool."""
    return next(row for row in rows if (row["policy"], row["hbm_fraction"], row["pool"]) == (policy, size, pool))
