"""The source notes' claims that one recording can speak to, and what a run's document says about them.

What is claimed, with its numbers, tolerances and status, stands in the ledger (`kvpager.claims.ledger`). Outcomes
are computed from the document, never written down. One rule for every figure: within the claim's tolerance it
is *supported*, within twice the tolerance *inconclusive*, beyond *contradicted*; what the document does not hold, or
one text cannot show, is *not settleable here*. All of it is about one model and one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from kvpager.claims.check import rederive
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE, SUPPORTED, Claim, claim, claims, status

__all__ = [
    "CLAIMS",
    "LADDER_RUNGS",
    "Finding",
    "closing_paragraph",
    "judge",
    "points",
]

LADDER_RUNGS: dict[str, tuple[str, float]] = {
    name: (label, percent / 100)
    for (name, label), percent in zip(
        {"lru": "LRU", "sink": "+ sink pin", "ema": "+ EMA", "per_head": "+ per head", "prefetch": "+ RoPE prefetch"}.items(),
        claim("ladder-steps").stated,
        strict=True,
    )
}
"""Rung → name for people and the block hit ratio that the note claims for it. Analytical; withdrawn by the author."""


class Finding(NamedTuple):
    """What the document says."""

    outcome: str
    text: str
    evidence: str
    brief: str = ""
    """The figure that decides, for the closing paragraph."""


class _Absent(Exception):
    """The document does not hold what a claim is about."""


def judge(doc: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Judge every claim of `CLAIMS` by a run's document.

    Parameters
    ----------
    doc : mapping
        Demo or ladder document.

    Returns
    -------
    list of dict
        ``id note stated stated_evidence status finding outcome evidence``; `evidence` is the finding's.
    """
    verdicts = []
    for one in _claims():
        found = _find(one, doc)
        verdicts.append(
            {
                "id": one.id,
                "note": _section_of(one),
                "stated": one.says,
                "stated_evidence": one.label,
                "status": status(one.id),
                "finding": found.text,
                "outcome": found.outcome,
                "evidence": found.evidence,
            }
        )
    return verdicts


def _claims() -> list[Claim]:
    return [claims()[name] for name in CLAIMS]


def _section_of(one: Claim) -> str:
    """Note and section without the diagram's number: ``"000 §6"``."""
    return re.sub(r" D[\d.]+|, caption| vs .*| \(audit\)", "", one.note)


def closing_paragraph(doc: Mapping[str, Any]) -> str:
    """Say in one paragraph what the run makes of the notes' claims.

    Parameters
    ----------
    doc : mapping
        Demo or ladder document.

    Returns
    -------
    str
        Plain text, one paragraph.
    """
    found = [(one, _find(one, doc)) for one in _claims()]
    trace = doc.get("trace", {})
    words = [CONTRADICTED, SUPPORTED, INCONCLUSIVE, NOT_SETTLEABLE]
    counts = [sum(finding.outcome == word for _, finding in found) for word in words]
    tally = ", ".join(f"{count} {word}" for count, word in zip(counts, words, strict=True) if count)
    where = f"One model ({trace.get('model', 'not named')}), one text ({trace.get('text', 'not named')})"
    size = f"{trace.get('context_tokens', '?')} tokens of context and {trace.get('steps', '?')} decode steps"
    findings = " ".join(f"{one.says}: {f.outcome} ({f.brief})." for one, f in found if f.outcome != NOT_SETTLEABLE)
    short = trace.get("steps", 0) < 64 or trace.get("context_tokens", 0) < 4096
    caution = " A short run: read directions, not magnitudes." if short else ""
    return (
        f"{where}, {size}: {len(found)} claims of the source notes, {tally}. {findings} The notes' figures are modelled, and "
        f"their author has withdrawn the ladder and the 97 %; another model, text or context may differ.{caution}"
    )


def _find(one: Claim, doc: Mapping[str, Any]) -> Finding:
    try:
        return CLAIMS[one.id](doc)
    except _Absent as absent:
        return Finding(NOT_SETTLEABLE, f"this run has no {absent}", "analytical")


def _outcome(distance: float, tolerance: float) -> str:
    """Apply the one rule; the slack absorbs the rounding of stored figures."""
    slack = 1e-9
    return SUPPORTED if distance <= tolerance + slack else INCONCLUSIVE if distance <= 2 * tolerance + slack else CONTRADICTED


def _stated(id: str, place: int = 0) -> float:
    """A stated share, as a ratio: the ledger has per cent and points."""
    return claim(id).stated[place] / 100


def _tolerance(id: str) -> float:
    return claim(id).tolerance[0] / 100


def _section(doc: Mapping[str, Any], key: str, name: str) -> Any:
    if not doc.get(key):
        raise _Absent(name)
    return doc[key]


def _main_ladders(doc: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Pool and rungs of each ladder at the document's main size that has all five rungs, in order."""
    ladder = _section(doc, "ladder", "ladder")
    for one in [ladder, *ladder.get("others", [])]:
        rungs = {rung["name"]: rung for rung in one["rungs"]}
        if abs(one["hbm_fraction"] - ladder["hbm_fraction"]) < 1e-9 and rungs.keys() >= LADDER_RUNGS.keys():
            yield one["pool"], [rungs[name] for name in LADDER_RUNGS]


def points(gain: float) -> str:
    """Print a difference of ratios as signed percentage points: ``"+4.2"``, ``"−0.3"``, ``"±0.0"``."""
    text = f"{100 * gain:+.1f}"
    return "±0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def _ladder_values(doc: Mapping[str, Any]) -> Finding:
    stated = [claimed for _, claimed in LADDER_RUNGS.values()]
    distances, texts, briefs = [], [], []
    for pool, rungs in _main_ladders(doc):
        hits = [rung["block_hit_ratio"] for rung in rungs]
        beyond = sum(rung["bound"] < claimed - 1e-9 for rung, claimed in zip(rungs, stated, strict=True))
        figures = " / ".join(f"{100 * hit:.1f}" for hit in hits)
        steps = " / ".join(points(after - before) for before, after in pairwise(hits))
        distances.append(max(abs(hit - claimed) for hit, claimed in zip(hits, stated, strict=True)))
        texts.append(
            f"{pool} pool: {figures} %, steps of {steps} points, {beyond} of the 5 stated values above their rung's bound"
        )
        briefs.append(f"{figures} % in the {pool} pool")
    if not texts:
        raise _Absent("ladder with all five rungs")
    size = f"{100 * doc['ladder']['hbm_fraction']:.4g} % of the KV in HBM"
    outcome = _outcome(min(distances), _tolerance("ladder-values"))
    return Finding(outcome, f"block hits with {size}; {'; '.join(texts)}", "simulated", f"{', '.join(briefs)}; {size}")


def _rope_gain(doc: Mapping[str, Any]) -> Finding:
    gains = {pool: rungs[4]["block_hit_ratio"] - rungs[3]["block_hit_ratio"] for pool, rungs in _main_ladders(doc)}
    if not gains:
        raise _Absent("ladder with all five rungs")
    text = ", ".join(f"{points(gain)} points in the {pool} pool" for pool, gain in gains.items())
    stated = _stated("ladder-rope-4")
    outcome = _outcome(min(abs(gain - stated) for gain in gains.values()), _tolerance("ladder-rope-4"))
    return Finding(outcome, text, "simulated", text)


def _hot_set(doc: Mapping[str, Any]) -> Finding:
    stated, both_tiers = _stated("hot-97-plausible"), rederive("dense-hit-rate").values[0] / 100  # 5.4 % is tier 1 alone
    rows = [row for row in _all_rows(doc) if row["hbm_fraction"] <= both_tiers + 1e-4]
    causal = [row for row in rows if row["policy"] != "belady"]
    if not causal:
        raise _Absent("policy replayed at 5.4 to 6.84 % of the KV in HBM")
    best = max(causal, key=lambda row: row["block_hit_ratio"])
    limit = max(max(row["block_hit_ratio"], row.get("bound", 0.0)) for row in rows)
    hits = f"{100 * best['block_hit_ratio']:.1f} %"
    name = f"{best.get('label', best['policy'])}, {best['pool']} pool, {100 * best['hbm_fraction']:.4g} % of the KV in HBM"
    reached = _outcome(max(0.0, stated - best["block_hit_ratio"]), _tolerance("hot-97-plausible"))
    outcome = INCONCLUSIVE if reached == CONTRADICTED and limit >= stated else reached
    text = f"the best policy ({name}) hits {hits} of the accesses; no policy can pass {100 * limit:.1f} %"
    return Finding(outcome, text, best.get("evidence", "simulated"), f"{hits} at best, {100 * limit:.1f} % for a clairvoyant")


def _all_rows(doc: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every replay row of the document."""
    ladder = doc.get("ladder", {})
    for one in [ladder, *ladder.get("others", [])]:
        yield from one.get("rungs", [])
    yield from ladder.get("references", [])
    yield from doc.get("curves", [])


def _dense(doc: Mapping[str, Any]) -> Finding:
    dense = _section(doc, "bounds", "dense bound").get("dense")
    if dense is None:
        raise _Absent("dense bound")
    share = f"{100 * dense:.1f} %"
    text = (
        f"a dense step reads every block, so any policy hits the resident share, {share}; more needs a selection, which is lossy"
    )
    return Finding(
        _outcome(abs(dense - _stated("dense-hit-rate")), _tolerance("dense-hit-rate")),
        text,
        "analytical",
        f"{share}, the resident share",
    )


def _locality(doc: Mapping[str, Any]) -> Finding:
    profile = _section(doc, "locality", "locality profile")
    found, bare = (f"{100 * profile[key]:.1f} %" for key in ("newest_10_percent", "newest_10_percent_without_first_4"))
    sink, heads = (f"{100 * profile[key]:.1f} %" for key in ("first_4", "q_heads_newest_10_at_least_80"))
    text = (
        f"{found} of the mass; {bare} once the first 4 tokens, with {sink}, are set aside; {heads} of the query heads reach 80 %"
    )
    outcome = _outcome(abs(profile["newest_10_percent"] - _stated("locality-80-10")), _tolerance("locality-80-10"))
    return Finding(outcome, text, profile["evidence"], f"{found}, or {bare} with the first 4 tokens set aside")


def _head_split(doc: Mapping[str, Any]) -> Finding:
    heads = _section(doc, "head_types", "head types")
    kinds, bare = heads["q_heads"]["kinds"], heads["q_heads"]["without_sink"]
    stated = {"recency": _stated("head-split", 0), "anchor": _stated("head-split", 1)}
    tolerance = _tolerance("head-split")
    far = any(_outcome(abs(kinds[kind]["share"] - share), tolerance) == CONTRADICTED for kind, share in stated.items())
    brief = ", ".join(f"{100 * kinds[kind]['share']:.0f} % {kind}" for kind in stated)
    aside = ", ".join(f"{100 * bare[kind]['share']:.0f} % {kind}" for kind in stated)
    text = (
        f"query heads: {brief}; with the first 4 tokens set aside {aside}; mass alone cannot tell retrieval from syntactic heads"
    )
    return Finding(CONTRADICTED if far else INCONCLUSIVE, text, heads["evidence"], f"{brief}; the rest cannot be told apart")


def _distance(doc: Mapping[str, Any]) -> Finding:
    bins = _section(doc, "locality", "locality profile")["absolute"]
    spans = zip(pairwise(bins["edges"]), bins["mean"], strict=False)
    density = {low: mass / (high - low) for (low, high), mass in spans}
    near, far = density.get(1, 0.0), density.get(512, 0.0)
    ratio = (
        f"a token 512 to 1,023 back gets 1/{near / far:,.0f} of the mass of the one before it"
        if near and far
        else "no far tokens"
    )
    text = f"{ratio}; whether position or content makes it so needs an ablation"
    return Finding(NOT_SETTLEABLE, text, doc["locality"]["evidence"])


CLAIMS: dict[str, Callable[[Mapping[str, Any]], Finding]] = {
    "ladder-values": _ladder_values,
    "ladder-rope-4": _rope_gain,
    "hot-97-plausible": _hot_set,
    "dense-hit-rate": _dense,
    "locality-80-10": _locality,
    "head-split": _head_split,
    "rope-locality-geometric": _distance,
}
"""Claims that a recording and its replay can speak to, by their ids in the ledger, and what judges each."""
