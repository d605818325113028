"""What the notes' cuts let into HBM, by how the EMA is scaled.

P = 0.25 R + 0.55 E + 0.20 N at the end of each step, half-life of R 128 steps, on the notes' own scale (raw mass of a block)
and on three that reach from 0 to 1. No replay: the cuts themselves say where a unit belongs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.study import Interval, Study, interval
from experiments.texts import TEXTS
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.policies.scores import NORMALISERS
from kvpager.replay.constants import NOTES, NOTES_CUTS, load_text
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.linear import Features

CLAIMS = ("p-raw-max", "ema-decisions", "p-new-token")
OLD_STEPS = 128
"""A unit that was not asked for, nor written, in so many steps is old."""


def run(study: Study) -> None:
    """Count who reaches the cuts, by scale of E."""
    rows = [row for text in TEXTS for row in _text(study, text)]

    def over(scale: str, figure: str) -> Interval:
        return interval([100 * row[figure] for row in rows if row["scale"] == scale])

    room = 100 * NOTE_HBM_FRACTION
    where = f"{len(TEXTS)} texts at {study.scale.context_tokens:,} tokens (SmolLM2, units of a KV head's block of 16 tokens)"
    raw = over("raw", "others_in_hbm")
    others = ", ".join(f"{scale} {over(scale, 'others_in_hbm').value:.0f} %" for scale in NORMALISERS[1:])
    study.find(
        "p-raw-max",
        CONTRADICTED if raw.high < room / 2 else SUPPORTED if raw.low > room / 2 else INCONCLUSIVE,
        f"with raw scores {raw.value:.2f} % of the units outside the sink zone reach the cut for HBM, 0.3 ({raw.low:.2f} to "
        f"{raw.high:.2f}), where HBM has room for {room:.2f} %; {over('raw', 'others_in_tier0').value:.2f} % reach tier 0's, "
        "0.6. By "
        f"other scales of E the same cut lets in {others}: no scale makes a cut fit a budget. On {where}",
        value=raw.value, low=raw.low, high=raw.high, unit="%",
    )  # fmt: skip
    old, mean = over("raw", "old_sinks_in_hbm"), interval([row["old_sinks_score"] for row in rows if row["scale"] == "raw"])
    study.find(
        "ema-decisions",
        CONTRADICTED if old.high < 50 else SUPPORTED if old.low > 50 else INCONCLUSIVE,
        f"of the sink zone's units that were not asked for in {OLD_STEPS} steps, {old.value:.1f} % reach 0.3 with raw scores "
        f"({old.low:.1f} to {old.high:.1f}; their mean E is {mean.value:.3f}), {over('rank', 'old_sinks_in_hbm').value:.0f} % "
        "with "
        f"ranked ones; {over('raw', 'sinks_in_hbm').value:.0f} % of all units of the zone do, old or not. On {where}",
        value=old.value, low=old.low, high=old.high, unit="%",
    )  # fmt: skip
    new = over("raw", "new_in_hbm")
    study.find(
        "p-new-token",
        CONTRADICTED if new.high < 50 else SUPPORTED if new.low > 50 else INCONCLUSIVE,
        f"of the units of the block written last, {new.value:.0f} % reach 0.3 with raw scores ({new.low:.0f} to {new.high:.0f}), "
        f"{over('rank', 'new_in_hbm').value:.0f} % with ranked ones: without a rule of its own the rest would leave HBM as "
        "soon as it is "
        f"full. On {where}",
        value=new.value, low=new.low, high=new.high, unit="%",
    )  # fmt: skip
    half = interval([room / 2 - 100 * row["others_in_hbm"] for row in rows if row["scale"] == "raw"])
    study.sign("half of HBM's room minus other units that reach 0.3, raw", half)
    study.sign("other units that reach 0.3, ranked minus raw", _difference(rows, "others_in_hbm"))
    study.sign("old sink units that reach 0.3, minus half of them", interval([v - 50 for v in _values(rows, "old_sinks_in_hbm")]))
    study.sign("newest units that reach 0.3, ranked minus raw", _difference(rows, "new_in_hbm"))


def _values(rows: list[dict[str, Any]], figure: str, scale: str = "raw") -> list[float]:
    return [100 * row[figure] for row in rows if row["scale"] == scale]


def _difference(rows: list[dict[str, Any]], figure: str) -> Interval:
    return interval([b - a for a, b in zip(_values(rows, figure), _values(rows, figure, "rank"), strict=True)])


def _text(study: Study, text: str) -> list[dict[str, Any]]:
    def make() -> list[dict[str, Any]]:
        one = load_text(study.recording(text), "topp_mass", NOTE_HBM_FRACTION)
        return [
            {"text": text, "scale": scale} | _shares(Features(one.script, NOTES.alpha, scale), one.warmup)
            for scale in NORMALISERS
        ]

    return study.once(f"{text} {OLD_STEPS}", make)


def _shares(features: Features, warmup: int) -> dict[str, float]:
    """Shares of complete units at and above the cuts, mean over the steps after the warm-up."""
    _, layers, heads = features.script.shape
    wide, first, second = layers * heads, *NOTES_CUTS
    old_recency = 2.0 ** (-OLD_STEPS / features.half_life)
    found: dict[str, list[float]] = {}
    for step, known in features.steps():
        if step < warmup:
            continue
        recency, score, sink = known[:, :-wide]  # the open block is held anyway
        priority = np.array(NOTES.weights) @ known[:, :-wide]
        zone, inside = sink > 0, priority >= first
        old = zone & (recency <= old_recency)
        parts = {
            "others_in_hbm": inside[~zone].mean(), "others_in_tier0": (priority >= second)[~zone].mean(),
            "sinks_in_hbm": inside[zone].mean(), "new_in_hbm": inside[-wide:].mean(), "all_in_hbm": inside.mean(),
        }  # fmt: skip
        if old.any():
            parts |= {"old_sinks_in_hbm": inside[old].mean(), "old_sinks_score": score[old].mean()}
        for name, value in parts.items():
            found.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in found.items()}
