"""What a step asks of memory, dense and selective: whether capacity or bandwidth limits one GPU, and a tier behind it.

Shares of blocks that hold 95 % of each head's mass from recordings; the rest is the planner's arithmetic over users and contexts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from experiments.study import Interval, Study, interval
from experiments.texts import TEST
from kvpager.analysis.locality import blocks_needed
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.hardware import load
from kvpager.models import resolve
from kvpager.plan.assumptions import DEFAULT
from kvpager.plan.single import plan
from kvpager.replay.attention import warmup_steps
from kvpager.traces.attention import read_recording

CLAIMS = ("wall-capacity-limits", "capacity-driven")
MODEL, ONE_GPU, TIERED = "llama-3.1-70b", "b200-hbm", "note-000-cxl"
CONTEXTS = (4096, 8192, 16_384, 32_768, 65_536, 131_072)
USERS, SLO_S, TARGET = 16, 0.1, 0.95
BEST = DEFAULT.but(placement=1.0)
"""HBM holds as much of what is read as fits."""
SLOW = DEFAULT.but(kv_efficiency=DEFAULT.kv_efficiency.ends[0])
ARITHMETIC = (Evidence.ASSUMPTION, Evidence.ANALYTICAL)


def run(study: Study) -> None:
    """Measure what selective attention reads; ask the planner what stops the next user."""
    texts = TEST[:3] if study.quick else TEST
    reads = {text: study.once(f"{text} {TARGET}", partial(_needed, study, text))[0]["read_fraction"] for text in texts}
    walls = study.once(f"walls {MODEL} {CONTEXTS} {SLO_S}", _walls)
    grid = study.once(f"grid {sorted(reads.items())}", partial(_grid, reads))
    _wall(study, walls)
    _link(study, grid, len(texts))


def _needed(study: Study, text: str) -> list[dict[str, Any]]:
    """Smallest share of its blocks that holds 95 % of a KV head's mass, mean over heads and every eighth step."""
    recording = read_recording(study.recording(text))
    shares = []
    for step in range(warmup_steps(recording.steps), recording.steps, 8):
        blocks = recording.open_block(step) + 1
        counts = blocks_needed(recording.mass[step, ..., :blocks].astype(np.float64), TARGET)[0]
        shares.append(float(np.mean(counts)) / blocks)
    return [{"text": text, "read_fraction": float(np.mean(shares)), "context_tokens": recording.header.context_tokens}]


def _walls() -> list[dict[str, Any]]:
    """One GPU, dense: users by capacity, and the time of a token when all of them are there."""
    rows = []
    for context in CONTEXTS:
        system, facts = load().systems[ONE_GPU], resolve(MODEL)
        most = int(plan(facts, system, context, read_fraction=1.0, slo_s=SLO_S)["answers"]["users_by_capacity"].value)
        there = plan(facts, system, context, max(most, 1), read_fraction=1.0, slo_s=SLO_S)
        slow = plan(facts, system, context, max(most, 1), read_fraction=1.0, slo_s=SLO_S, assumptions=SLOW)
        token, step = there["answers"]["token_s"], there["step"]
        rows.append(
            {
                "context_tokens": context, "users_by_capacity": most, "token_s": token.value, "slow_token_s": slow["answers"]["token_s"].value,
                "stopped_by": there["answers"]["binding_constraint"], "compute_s": step["compute_s"].value,
                "memory_s": step["memory_s"].value,
            }
        )  # fmt: skip
    return rows


def _grid(reads: dict[str, float]) -> list[dict[str, Any]]:
    """The notes' system at its best: link time over the step's own time, by context, users and what is read."""
    facts, system = resolve(MODEL), load().systems[TIERED]
    rows = []
    for context in CONTEXTS[::2] + CONTEXTS[-1:]:
        for users in (4, USERS, 64):
            for text, read in [("dense", 1.0), *reads.items()]:
                found = plan(facts, system, context, users, read_fraction=read, slo_s=SLO_S, assumptions=BEST)
                step, answers = found["step"], found["answers"]
                own = max(step["memory_s"].value, step["compute_s"].value)
                rows.append(
                    {
                        "context_tokens": context, "users": users, "text": text, "read_fraction": read, "own_s": own,
                        "link_s": step["transfer_s"].value, "hbm_share": step["hbm_share"].value,
                        "users_by_capacity": answers["users_by_capacity"].value, "users_at_slo": answers["users_at_slo"].value,
                        "stopped_by": answers["binding_constraint"],
                    }
                )  # fmt: skip
    return rows


def _wall(study: Study, walls: list[dict[str, Any]]) -> None:
    by_capacity = [row["stopped_by"].startswith("capacity") for row in walls]
    told = ", ".join(f"{row['users_by_capacity']} at {row['context_tokens'] // 1024}K" for row in walls)
    slowest = max(walls, key=lambda row: row["token_s"])
    study.find(
        "wall-capacity-limits",
        SUPPORTED if all(by_capacity) else INCONCLUSIVE if any(by_capacity) else CONTRADICTED,
        f"{MODEL} on one B200 with dense attention: capacity allows this many users: {told}; with all of them "
        f"there a token takes at most {1000 * slowest['token_s']:.0f} ms ({1000 * slowest['slow_token_s']:.0f} ms if attention "
        f"reads KV as slowly as was ever measured), so that at {1000 * SLO_S:.0f} ms a token capacity stops the next user at "
        f"{sum(by_capacity)} of {len(walls)} contexts, and would at any service level slower than that",
        value=1000 * slowest["token_s"], unit="ms", labels=ARITHMETIC,
    )  # fmt: skip
    study.sign("service level − token time when HBM is full", SLO_S - slowest["token_s"])


def _link(study: Study, grid: list[dict[str, Any]], texts: int) -> None:
    here = [row for row in grid if (row["context_tokens"], row["users"]) == (CONTEXTS[-1], USERS)]
    dense = next(row for row in here if row["text"] == "dense")
    chosen = [row for row in here if row["text"] != "dense"]
    ratio = interval(row["link_s"] / row["own_s"] for row in chosen)
    read = interval(100 * row["read_fraction"] for row in chosen)
    served = interval(row["users_at_slo"] for row in chosen)
    free = sum(row["link_s"] <= row["own_s"] for row in grid if row["text"] != "dense")
    study.find(
        "capacity-driven",
        CONTRADICTED if ratio.low > 1 else SUPPORTED if ratio.high < 1 else INCONCLUSIVE,
        f"{USERS} users of {MODEL} at 128K on the notes' system: reading the {read.value:.0f} % of the blocks that hold 95 % of "
        f"each head's mass (mean of {texts} texts, SmolLM2 at up to {study.scale.context_tokens:,} tokens) keeps the link busy "
        f"for {ratio.value:.1f} times the step's own time even if HBM holds as much of it as fits, dense attention for "
        f"{dense['link_s'] / dense['own_s']:.0f} times; capacity would allow {dense['users_by_capacity']:.0f} users, ten tokens a "
        f"second {served.value:.1f}: bandwidth limits it, not capacity. The link keeps up in {free} of "
        f"{sum(row['text'] != 'dense' for row in grid)} selective cases over 4K to 128K tokens and 4 to 64 users",
        value=ratio.value, low=ratio.low, high=ratio.high, unit="x", labels=(*ARITHMETIC, Evidence.MEASURED),
    )  # fmt: skip
    study.sign("link time − own time, selective", Interval(*(end - 1 for end in ratio)))
    study.sign("link time − own time, dense", dense["link_s"] - dense["own_s"])
    study.result(
        "blocks that hold 95 % of a head's mass",
        f"share of its blocks that a KV head would read, mean over heads and {texts} texts",
        value=read.value, low=read.low, high=read.high, unit="%", labels=(Evidence.MEASURED,),
    )  # fmt: skip
