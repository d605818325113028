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
BAND = (0.02, 0.08)
"""Raw scores that count as the notes' 0.04."""

NEARLY_ALL = 95
"""Per cent: what stays in HBM by its score does so nearly always, or needs a rule of its own."""


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
    near = over("raw", "anchors_in_hbm")
    study.find(
        "ema-decisions",
        _stays(near),
        f"of the sink zone's units with a raw score near 0.04 ({BAND[0]} to {BAND[1]}), {near.value:.0f} % reach 0.3 "
        f"({near.low:.0f} to {near.high:.0f}), because R counts from the last access and they are read again and again: "
        f"{over('raw', 'anchors_read').value:.0f} % of them were read within half a half-life. Were R the age of the position, "
        f"none would: 0.55 x {BAND[1]} + 0.20 is below 0.3. Of all units of the zone {over('raw', 'sinks_in_hbm').value:.0f} % "
        f"do. On {where}",
        value=near.value, low=near.low, high=near.high, unit="%",
    )  # fmt: skip
    new = over("raw", "new_in_hbm")
    study.find(
        "p-new-token",
        _stays(new),
        f"of the units of the block written last, {new.value:.0f} % reach 0.3 with raw scores ({new.low:.0f} to {new.high:.0f}), "
        f"{over('rank', 'new_in_hbm').value:.0f} % with ranked ones: by the notes' own scale, new tokens need a rule of their "
        "own. "
        f"On {where}",
        value=new.value, low=new.low, high=new.high, unit="%",
    )  # fmt: skip
    half = interval([room / 2 - 100 * row["others_in_hbm"] for row in rows if row["scale"] == "raw"])
    study.sign("half of HBM's room minus other units that reach 0.3, raw", half)
    study.sign("other units that reach 0.3, ranked minus raw", _difference(rows, "others_in_hbm"))
    study.sign(
        "anchors near 0.04 that reach 0.3, minus half of them", interval([v - 50 for v in _values(rows, "anchors_in_hbm")])
    )
    study.sign("newest units that reach 0.3, ranked minus raw", _difference(rows, "new_in_hbm"))


def _stays(share: Interval) -> str:
    return CONTRADICTED if share.high < NEARLY_ALL else SUPPORTED if share.low > NEARLY_ALL else INCONCLUSIVE


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

    return study.once(f"{text} {BAND}", make)


def _shares(features: Features, warmup: int) -> dict[str, float]:
    """Shares of complete units at and above the cuts, mean over the steps after the warm-up."""
    _, layers, heads = features.script.shape
    wide, first, second = layers * heads, *NOTES_CUTS
    found: dict[str, list[float]] = {}
    for step, known in features.steps():
        if step < warmup:
            continue
        recency, score, sink = known[:, :-wide]  # the open block is held anyway
        priority = np.array(NOTES.weights) @ known[:, :-wide]
        zone, inside = sink > 0, priority >= first
        near = zone & (score >= BAND[0]) & (score <= BAND[1])
        parts = {
            "others_in_hbm": inside[~zone].mean(), "others_in_tier0": (priority >= second)[~zone].mean(),
            "sinks_in_hbm": inside[zone].mean(), "new_in_hbm": inside[-wide:].mean(), "all_in_hbm": inside.mean(),
        }  # fmt: skip
        if near.any():
            parts |= {"anchors_in_hbm": inside[near].mean(), "anchors_read": (recency[near] > 0.5**0.5).mean()}
        for name, value in parts.items():
            found.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in found.items()}
