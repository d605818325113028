"""How much stays if a position stays because any head needs it: the maximum over 8 heads, and over all.

Each KV head marks its hottest blocks by the EMA of the mass of what was read (alpha 0.2), as many as HBM's share; a block stays
if any head of a group marks it. Then what ranking by that maximum does to hits, at equal bytes, units of heads, one pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.study import Interval, Study, interval
from experiments.texts import TEST, TEXTS
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.replay.constants import NOTES, load_text
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.linear import Features
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep

CLAIMS = ("agg-layers", "agg-any-head")
NOTE_HEADS = 8
DRAWS = 5
EVERY = 8
"""Steps between those that are looked at."""

RANKED = {"own": "ema", "max over the layer": "ema+max:layer", "max over all": "ema+max:all"}


def run(study: Study) -> None:
    """Count what stays, and replay the three rankings."""
    study.seeds = list(range(DRAWS))
    kept = [_kept(study, text) for text in TEXTS]
    shares = {name: interval([100 * row[name] for row in kept]) for name in ("layer", "eight", "all")}
    room, heads = 100 * NOTE_HBM_FRACTION, int(kept[0]["heads"])
    factor = interval([row["all"] / NOTE_HBM_FRACTION for row in kept])
    study.find(
        "agg-layers",
        CONTRADICTED if shares["all"].low > max(room, shares["eight"].high) else SUPPORTED if factor.high < 1 else INCONCLUSIVE,
        f"if each KV head marks its hottest {room:.2f} % of the blocks and a block stays where any head marks it, {NOTE_HEADS} "
        "heads "
        f"keep {shares['eight'].value:.0f} % of the blocks ({shares['eight'].low:.0f} to {shares['eight'].high:.0f}), and all "
        f"{heads} of "
        f"SmolLM2 {shares['all'].value:.0f} % ({shares['all'].low:.0f} to {shares['all'].high:.0f}): {factor.value:.0f} times "
        "what HBM holds. "
        f"On {len(TEXTS)} texts at {study.scale.context_tokens:,} tokens; Llama-3-70B has 640 KV heads, which can only keep more",
        value=shares["all"].value, low=shares["all"].low, high=shares["all"].high, unit="%",
    )  # fmt: skip
    study.sign("share kept by all heads minus by 8", interval([row["all"] - row["eight"] for row in kept]))
    study.sign("share kept by 8 heads minus HBM's share", interval([row["eight"] - NOTE_HBM_FRACTION for row in kept]))
    rows = [_replayed(study, text) for text in TEST]
    loss = {name: interval([100 * (row["own"] - row[name]) for row in rows]) for name in list(RANKED)[1:]}
    own, most = interval([100 * row["own"] for row in rows]), loss["max over all"]
    study.find(
        "agg-any-head",
        CONTRADICTED if most.low > 0 else SUPPORTED if most.high < 0 else INCONCLUSIVE,
        f"at equal bytes, {room:.2f} % of the KV in one pool, giving all heads of a block their maximum loses {_said(most)} "
        "points of "
        f"block hits against each head's own EMA ({own.value:.1f} %), the maximum over a layer's heads "
        f"{_said(loss['max over the layer'])}; "
        f"SmolLM2, {len(TEST)} texts",
        value=most.value, low=most.low, high=most.high, unit="points",
    )  # fmt: skip
    for name, lost in loss.items():
        study.sign(f"hits of own scores minus {name}", lost)


def _said(found: Interval) -> str:
    return f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"


def _kept(study: Study, text: str) -> dict[str, Any]:
    def make() -> list[dict[str, Any]]:
        one = load_text(study.recording(text), "topp_mass", NOTE_HBM_FRACTION)
        _, layers, heads = one.script.shape
        rng = np.random.default_rng(0)
        groups = [rng.choice(layers * heads, NOTE_HEADS, replace=False) for _ in range(DRAWS)]
        found: dict[str, list[float]] = {"layer": [], "eight": [], "all": []}
        for step, known in Features(one.script, NOTES.alpha, "raw").steps():
            if step < one.warmup or step % EVERY:
                continue
            score = known[1].reshape(-1, layers * heads)[:-1]
            count = max(1, round(NOTE_HBM_FRACTION * len(score)))
            hot = score >= np.partition(score, len(score) - count, axis=0)[len(score) - count]
            hot &= score > 0
            found["all"].append(float(hot.any(axis=1).mean()))
            found["layer"].append(float(hot.reshape(-1, layers, heads).any(axis=2).mean()))
            found["eight"].append(float(np.mean([hot[:, group].any(axis=1).mean() for group in groups])))
        return [{"part": "kept", "text": text, "heads": layers * heads} | {name: float(np.mean(v)) for name, v in found.items()}]

    return study.once(f"kept {text} {NOTE_HBM_FRACTION} {DRAWS}", make)[0]


def _replayed(study: Study, text: str) -> dict[str, Any]:
    def make() -> list[dict[str, Any]]:
        cases = [Case(policy, NOTE_HBM_FRACTION, bound=False) for policy in RANKED.values()]
        rows = sweep(Source(study.recording(text)), cases, jobs=1)
        return [
            {"part": "replayed", "text": text} | {name: row["block_hit_ratio"] for name, row in zip(RANKED, rows, strict=True)}
        ]

    return study.once(f"replayed {text} {NOTE_HBM_FRACTION}", make)[0]
