"""What the notes' ladder gives: five rungs, all 16 subsets of their factors, each rung beside its own bound.

At the notes' HBM of 6.84 % of the KV, in global and in equal pools, on texts that no constant was fitted on.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

from experiments.study import Interval, Study, interval
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.claims.notes import LADDER_RUNGS
from kvpager.replay.ladder import FACTORS, NOTE_HBM_FRACTION, RUNGS, rung_case, shapley
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep

CLAIMS = ("ladder-values", "ladder-rope-4", "head-single-policy")
TEXTS = ("code", "docs", "drama", "report-to-code", "return")
POOLS = ("global", "equal")
STATED = [100 * ratio for _, ratio in LADDER_RUNGS.values()]
SUBSETS = [group for k in range(len(FACTORS) + 1) for group in combinations(FACTORS, k)]
QUICK_FRACTION = 0.10
"""Of a short recording: 6.84 % could not hold the blocks that are being written."""


def run(study: Study) -> None:
    """Replay the ladder on each text; judge rungs and factors."""
    size = QUICK_FRACTION if study.quick else NOTE_HBM_FRACTION
    texts = TEXTS[:3] if study.quick else TEXTS
    found = {text: study.once(f"{text} {size}", partial(_text, study, text, size)) for text in texts}
    _values(study, found, size)
    _per_head(study, found)
    _prefetch(study, found)


Rows = dict[str, list[dict[str, Any]]]


def _value(rows: list[dict[str, Any]], pool: str, *factors: str) -> float:
    """Block hit ratio, in %."""
    return 100 * next(row["block_hit_ratio"] for row in rows if (row["pool"], row["factors"]) == (pool, "+".join(factors)))


def _values(study: Study, found: Rows, size: float) -> None:
    rungs = {pool: [interval(_value(rows, pool, *on) for rows in found.values()) for _, _, on in RUNGS] for pool in POOLS}
    bound = interval(100 * max(row["bound"] for row in rows if row["bound"] is not None) for rows in found.values())
    outside = [all(not rung[i].low <= stated <= rung[i].high for rung in rungs.values()) for i, stated in enumerate(STATED)]
    shown = {pool: " → ".join(f"{rung.value:.0f}" for rung in rungs[pool]) for pool in POOLS}
    top = rungs["global"][-1]
    study.find(
        "ladder-values",
        CONTRADICTED if all(outside) else INCONCLUSIVE if any(outside) else SUPPORTED,
        f"at {100 * size:.3g} % of the KV, mean of {len(found)} texts: {shown['equal']} % in equal pools, {shown['global']} % in "
        f"one global pool, where the largest bound of a rung without prefetch is {bound.value:.0f} %",
        value=top.value, low=top.low, high=top.high, unit="%",
    )  # fmt: skip
    for i, what in enumerate(("sink − LRU", "EMA − sink")):
        for pool in POOLS:
            gain = interval(_value(rows, pool, *RUNGS[i + 1][2]) - _value(rows, pool, *RUNGS[i][2]) for rows in found.values())
            study.sign(f"{what}, {pool} pool", gain)
    for pool in POOLS:
        study.sign(f"97 % − the last rung, {pool} pool", interval(97 - _value(rows, pool, *FACTORS) for rows in found.values()))


def _per_head(study: Study, found: Rows) -> None:
    share = {pool: _shapley(found, pool, "per_head") for pool in POOLS}
    gain = share["global"]
    study.find(
        "head-single-policy",
        SUPPORTED if gain.low > 0 else CONTRADICTED if gain.high < 0 else INCONCLUSIVE,
        f"keeping units per KV head instead of per layer is worth {gain.value:+.1f} points of hits in a global pool and "
        f"{share['equal'].value:+.1f} in equal pools (Shapley share over all orders of the factors); it is one policy for all "
        "heads, with a score for each",
        value=gain.value, low=gain.low, high=gain.high, unit="points",
    )  # fmt: skip
    study.sign("per head, Shapley, global", gain)


def _prefetch(study: Study, found: Rows) -> None:
    last = interval(_value(rows, "global", *FACTORS) - _value(rows, "global", *FACTORS[:-1]) for rows in found.values())
    study.find(
        "ladder-rope-4",
        CONTRADICTED if last.high < 4 else SUPPORTED if last.low <= 4 <= last.high else INCONCLUSIVE,
        f"the fifth rung's prefetch by RoPE distance and EMA changes hits by {last.value:+.2f} points in a global pool, by "
        f"{_shapley(found, 'global', 'prefetch').value:+.2f} over all orders of the factors",
        value=last.value, low=last.low, high=last.high, unit="points",
    )  # fmt: skip
    study.sign("4 points − gain of the RoPE prefetch", Interval(4 - last.value, 4 - last.high, 4 - last.low))


def _shapley(found: Rows, pool: str, factor: str) -> Interval:
    shares = [shapley({frozenset(on): _value(rows, pool, *on) for on in SUBSETS})[factor] for rows in found.values()]
    return interval(shares)


def _text(study: Study, text: str, size: float) -> list[dict[str, Any]]:
    rungs = {on for _, _, on in RUNGS}
    cases = [rung_case(on, size, pool, bound=on in rungs and "prefetch" not in on) for pool in POOLS for on in SUBSETS]
    cases += [Case(policy, size, bound=False) for policy in ("blend", "belady")]
    keys = ("policy", "pool", "granularity", "hbm_fraction", "block_hit_ratio", "mass_hit_ratio", "p5_head_mass", "dense_bound")
    rows = sweep(Source(study.recording(text)), cases, jobs=1)
    names = ["+".join(on) for _ in POOLS for on in SUBSETS] + ["blend", "belady"]
    return [
        {"text": text, "factors": name, "bound": row.get("bound")} | {key: row[key] for key in keys}
        for name, row in zip(names, rows, strict=True)
    ]
