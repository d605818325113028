"""Which kinds of heads there are, among query heads and among KV heads, and whether KV heads mix them.

By mass on the first 100 and the last 200 tokens; copying by a text that is said twice: the mass on the block that the next
token will be copied from, while the second copy is read.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from experiments.recordings import ECHO, ECHO_LEAD_TOKENS, GEMMA
from experiments.study import Study, interval
from experiments.texts import TEXTS
from kvpager.analysis.heads import KINDS, classify
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.replay.attention import warmup_steps
from kvpager.traces.attention import read_recording

CLAIMS = ("head-split", "head-gqa-mixing")
STATED = {"recency": 40.0, "anchor": 15.0}
COPIES = 0.1
"""Mean mass on the copied block from which a KV head counts as copying; blocks at random would hold well below 1 %."""
MEASURED = (Evidence.MEASURED,)


def run(study: Study) -> None:
    """Classify heads on every text, and find the copying ones."""
    rows = [study.once(text, partial(_text, study, text))[0] for text in TEXTS]
    if not study.quick:
        for text in ("code", "report"):
            study.once(f"{text}, Gemma", partial(_text, study, text, model=GEMMA, context_tokens=8064, steps=128))
    copying = study.once("copying", partial(_copying, study))[0]["copying_share"]
    shares = {kind: interval([100 * row[kind] for row in rows]) for kind in KINDS}
    bare = {kind: interval([100 * row[f"{kind}_without_sink"] for row in rows]) for kind in KINDS}
    told = ", ".join(f"{shares[kind].value:.0f} % {kind} ({bare[kind].value:.0f} % without the first 4 tokens)" for kind in KINDS)
    inside = [shares[kind].low <= stated <= shares[kind].high for kind, stated in STATED.items()]
    study.find(
        "head-split",
        SUPPORTED if all(inside) else CONTRADICTED,
        f"query heads: {told}, mean of {len(rows)} texts; {100 * copying:.0f} % of the KV heads copy (at least {COPIES:.0%} of their "
        "mass on the block that is being repeated). Mass alone cannot tell retrieval from syntactic heads",
        value=shares["recency"].value, low=shares["recency"].low, high=shares["recency"].high, unit="%", labels=MEASURED,
    )  # fmt: skip
    study.sign("recency heads minus 40 %", interval([100 * row["recency"] - 40 for row in rows]))
    mixed = interval([100 * row["kv_heads_with_other"] for row in rows])
    chance = interval([100 * (1 - (1 - row["other"]) ** row["group"]) for row in rows])
    gap = interval([100 * (row["kv_heads_with_other"] - (1 - (1 - row["other"]) ** row["group"])) for row in rows])
    study.find(
        "head-gqa-mixing",
        SUPPORTED if gap.low <= 0 <= gap.high else CONTRADICTED if gap.high < 0 else INCONCLUSIVE,
        f"{mixed.value:.0f} % of the KV heads hold at least one query head that is neither recency nor anchor; "
        f"{chance.value:.0f} % would if kinds fell independently in groups of {rows[0]['group']} (SmolLM2; the note's 90 % is for "
        "groups of eight, which no model here has)",
        value=gap.value, low=gap.low, high=gap.high, unit="points", labels=MEASURED,
    )  # fmt: skip
    study.sign("mixed KV heads minus chance", gap)


def _text(study: Study, text: str, **how: Any) -> list[dict[str, Any]]:
    recording = read_recording(study.recording(text, **how))
    header = recording.header
    found = classify(recording, warmup_steps(recording.steps))
    kinds = np.asarray(found["by_layer"]).reshape(len(header.layers), header.num_kv_heads, -1)
    row: dict[str, Any] = {"model": header.model, "text": text, "context_tokens": header.context_tokens, "group": kinds.shape[2]}
    for kind in KINDS:
        row[kind] = found["q_heads"]["kinds"][kind]["share"]
        row[f"{kind}_without_sink"] = found["q_heads"]["without_sink"][kind]["share"]
        row[f"kv_{kind}"] = found["kv_heads"]["kinds"][kind]["share"]
    return [row | {"kv_heads_with_other": float((kinds == "other").any(axis=2).mean())}]


def _copying(study: Study) -> list[dict[str, Any]]:
    """Mean mass of each KV head on the block where the token stood that comes next."""
    context, steps = (1024, 64) if study.quick else (2048, 128)
    recording = read_recording(study.recording(ECHO, context_tokens=context, steps=steps))
    once = context - ECHO_LEAD_TOKENS
    score = np.mean(
        [
            recording.mass[step, :, :, (context + step + 1 - once) // recording.header.block_size].astype(np.float64)
            for step in range(steps)
        ],
        axis=0,
    )
    by_layer = (score >= COPIES).mean(axis=1)
    return [
        {
            "text": ECHO,
            "copying_share": float((score >= COPIES).mean()),
            "copying_by_layer": by_layer.tolist(),
            "highest": float(score.max()),
        }
    ]
