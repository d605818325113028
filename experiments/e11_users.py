"""How many users of 128K tokens get ten tokens a second: hits by size of HBM from recordings, then the planner's step model.

For Llama-3-70B on the notes' system, on one with host DRAM and on tensor parallelism, with dense and with selective attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.study import Interval, Study, interval
from experiments.texts import TEST
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.hardware import load
from kvpager.models import resolve
from kvpager.plan.curve import HitCurve
from kvpager.plan.single import plan
from kvpager.plan.trace import hit_curve_of

CLAIMS = ("users-17-slo", "target-10tok", "viable-if-97")
MODEL, CONTEXT, USERS, SLO_S = "llama-3-70b", 131_072, 16, 0.1
NOTE, HOST, RESIDENT = "note-000-cxl", "b200-host-cxl", "b200x4-tp"
BASELINE = "note-000-offload"
READS = (0.05, 0.10, 0.20)
SHARES = (0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3)
QUICK_SHARES = (0.05, 0.1, 0.25)
LABELS = (Evidence.ASSUMPTION, Evidence.ANALYTICAL, Evidence.SIMULATED, Evidence.MEASURED)
"""That hits of a small model at 8K hold for a large one at 128K is an assumption, and the weakest of these."""


def run(study: Study) -> None:
    """Make a curve of each text and read fraction; answer by each, and by their means, which are published."""
    texts = TEST[:3] if study.quick else TEST
    shares = QUICK_SHARES if study.quick else SHARES
    curves = {
        read: {text: _curve(study, text, read, shares) for text in texts} for read in (READS[1:2] if study.quick else READS)
    }
    study.curves = [_mean(read, list(each.values())).to_json() for read, each in curves.items()]
    answers = _answers(study, curves)
    _dense(study, answers)
    _slo(study, curves, answers)
    _viable(study, curves)


def _curve(study: Study, text: str, read: float, shares: tuple[float, ...]) -> HitCurve:
    def make() -> list[dict[str, Any]]:
        found = hit_curve_of(study.recording(text), read, shares=shares)
        pairs = zip(found.hbm_shares, found.byte_hit_ratios, strict=True)
        return [
            {"text": text, "read_fraction": read, "hbm_share": share, "byte_hit_ratio": ratio, "source": found.source}
            for share, ratio in pairs
        ]

    rows = study.once(f"{text} {read} {shares}", make)
    return HitCurve(
        tuple(row["hbm_share"] for row in rows), tuple(row["byte_hit_ratio"] for row in rows), read, rows[0]["source"]
    )


def _mean(read: float, curves: list[HitCurve]) -> HitCurve:
    """The mean over texts, at the sizes that all have."""
    shares = [share for share in curves[0].hbm_shares if all(share in curve.hbm_shares for curve in curves)]
    at = [[curve.byte_hit_ratios[curve.hbm_shares.index(share)] for curve in curves] for share in shares]
    source = curves[0].source.partition(", HBM at")[0]
    return HitCurve(
        tuple(shares), tuple(interval(ratios).value for ratios in at), read, f"mean over {len(curves)} texts of the {source}"
    )


def _plan(system: str, users: int = USERS, curve: HitCurve | None = None) -> dict[str, Any]:
    how: dict[str, Any] = {"read_fraction": 1.0} if curve is None else {"hit_curve": curve}
    return plan(resolve(MODEL), load().systems[system], CONTEXT, users, slo_s=SLO_S, **how)


def _answers(study: Study, curves: dict[float, dict[str, HitCurve]]) -> dict[tuple[str, float], Interval]:
    """Users at the service level by system and read fraction, over texts; 1 = dense."""

    def make() -> list[dict[str, Any]]:
        asked = [(system, 1.0, "", None) for system in (NOTE, HOST, RESIDENT)]
        asked += [
            (system, read, text, curve)
            for system in (NOTE, HOST)
            for read, each in curves.items()
            for text, curve in each.items()
        ]
        return [
            {"system": system, "read_fraction": read, "text": text} | _row(_plan(system, curve=curve))
            for system, read, text, curve in asked
        ]

    rows = study.once(f"users {MODEL} {CONTEXT} {sorted(curves)} {list(next(iter(curves.values())))}", make)
    return {
        key: interval(row["users"] for row in rows if (row["system"], row["read_fraction"]) == key)
        for key in dict.fromkeys((row["system"], row["read_fraction"]) for row in rows)
    }


def _row(answer: dict[str, Any]) -> dict[str, Any]:
    users, token = answer["answers"]["users_at_slo"], answer["answers"]["token_s"]
    low, high = users.ends
    return {
        "users": users.value, "users_low": low, "users_high": high, "stopped_by": answer["answers"]["binding_constraint"],
        "token_s_at_16": token.value, "hbm_share_at_16": answer["step"]["hbm_share"].value,
    }  # fmt: skip


def _told(answers: dict[tuple[str, float], Interval], system: str) -> str:
    return ", ".join(
        f"{found.value:.0f} reading {100 * read:g} %" if read < 1 else f"{found.value:.0f} with dense attention"
        for (name, read), found in answers.items()
        if name == system
    )


def _slo(study: Study, curves: dict[float, dict[str, HitCurve]], answers: dict[tuple[str, float], Interval]) -> None:
    read = 0.10
    found = answers[NOTE, read]
    study.find(
        "users-17-slo",
        CONTRADICTED if found.high < USERS else SUPPORTED if found.low <= USERS <= found.high else INCONCLUSIVE,
        f"with measured hits by size of HBM, {MODEL} at 128K serves this many users at ten tokens a second on the notes' system: "
        f"{_told(answers, NOTE)}; on a B200 with host DRAM, CXL and NVMe: {_told(answers, HOST)}; on four B200 that hold all KV: "
        f"{_told(answers, RESIDENT)} (means over {len(curves[read])} texts; hits of SmolLM2 are assumed to hold)",
        value=found.value, low=found.low, high=found.high, unit="users", labels=LABELS,
    )  # fmt: skip
    study.result(
        "users of 128K tokens at ten tokens a second",
        f"{MODEL} on {NOTE}: {_told(answers, NOTE)}; on {HOST}: {_told(answers, HOST)}; on {RESIDENT}: "
        f"{_told(answers, RESIDENT)}. The chain of evidence of each: kvpager plan --model {MODEL} --system {NOTE} --context 128K "
        "--curve experiments/results/E11.json --read 10% --explain",
        value=found.value, low=found.low, high=found.high, unit="users", labels=LABELS,
    )  # fmt: skip
    study.sign("16 users − users on the notes' system, reading 10 %", Interval(*(USERS - end for end in found)))
    study.sign(
        "users on four B200, dense − users on the notes' system, reading 10 %",
        Interval(*(answers[RESIDENT, 1.0].value - end for end in found)),
    )


def _dense(study: Study, answers: dict[tuple[str, float], Interval]) -> None:
    proposed, baseline = _plan(NOTE)["answers"]["token_s"], _plan(BASELINE)["answers"]["token_s"]
    reads = {read: interval(1 / row["token_s_at_16"] for row in _of(study, NOTE, read)) for system, read in answers if
             system == NOTE and read < 1}  # fmt: skip
    best = max(reads.values(), key=lambda found: found.value)
    told = ", ".join(f"{found.value:.1f} reading {100 * read:g} %" for read, found in reads.items())
    study.find(
        "target-10tok",
        CONTRADICTED if best.high < 10 else SUPPORTED if best.low >= 10 and baseline.value <= SLO_S else INCONCLUSIVE,
        f"each of {USERS} users at 128K gets this many tokens a second of {MODEL} on the notes' system: {told} with measured hits, "
        f"{1 / proposed.value:.2f} with dense attention; on the notes' baseline, which swaps whole contexts, "
        f"{1 / baseline.value:.2f}",
        value=best.value, low=best.low, high=best.high, unit="tokens/s", labels=LABELS,
    )  # fmt: skip
    study.sign("10 tokens/s − tokens/s of 16 users at best", Interval(10 - best.value, 10 - best.high, 10 - best.low))


def _of(study: Study, system: str, read: float) -> list[dict[str, Any]]:
    return [row for row in study.rows if (row.get("system"), row["read_fraction"]) == (system, read)]


def _needed(read: float) -> float:
    """Least byte hit ratio with which 16 users still get ten tokens a second on the notes' system; above 1: none suffices."""
    low, high = 0.0, 1.0
    share = _plan(NOTE, curve=HitCurve((0.5,), (0.5,), read, "a guess"))["step"]["hbm_share"].value

    def served(ratio: float) -> bool:
        answer = _plan(NOTE, curve=HitCurve((share,), (ratio,), read, "a guess"))
        return bool(answer["answers"]["token_s"].value <= SLO_S)

    if not served(1.0):
        return float("inf")
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if served(middle) else (middle, high)
    return high


def _viable(study: Study, curves: dict[float, dict[str, HitCurve]]) -> None:
    shares = {read: _of(study, NOTE, read)[0]["hbm_share_at_16"] for read in curves}
    need = study.once(
        f"needed {MODEL} {CONTEXT} {sorted(curves)}",
        lambda: [{"read_fraction": read, "needed_hit_ratio": _needed(read), "needed_at_share": shares[read]} for read in curves],
    )
    needed = {row["read_fraction"]: 100 * row["needed_hit_ratio"] for row in need}
    got = {
        read: interval(100 * (1 - plan_miss) for plan_miss in (_miss(curve, shares[read]) for curve in each.values()))
        for read, each in curves.items()
    }
    read = 0.10
    told = "; ".join(
        f"reading {100 * one:g} % it takes {needed[one]:.1f} % of the bytes, and {got[one].value:.0f} % hit" for one in curves
    )
    gap = Interval(*(needed[read] - end for end in (got[read].value, got[read].high, got[read].low)))
    nearly_all = 90.0
    study.find(
        "viable-if-97",
        SUPPORTED if needed[read] >= nearly_all else CONTRADICTED,
        f"hits that {USERS} users of {MODEL} at 128K need for ten tokens a second on the notes' system depend on what a step "
        f"reads, by the step model: {told} with {100 * shares[read]:.1f} % of the KV in HBM (means over texts, SmolLM2)",
        value=needed[read], unit="%", labels=LABELS,
    )  # fmt: skip
    study.sign("hits needed − hits measured, reading 10 %", gap)


def _miss(curve: HitCurve, share: float) -> float:
    return float(1 - np.interp(share, [0, *curve.hbm_shares, 1], [0, *curve.byte_hit_ratios, 1]))
