"""The recommended placement live, with a real selector: hits, mass, moves, output quality, topic switches, late questions.

Three runs of the tiered cache, each logged: texts read token by token after their context; questions that are asked after a
context in which their answer was told once; and a long answer that the model writes itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.loop import READ, SELECTOR, against_dense, logged, of_log
from experiments.recordings import load, tokens_of
from experiments.study import Study, interval
from experiments.texts import SWITCHES
from kvpager.evidence import Evidence
from kvpager.policies import make_policy
from kvpager.replay.attention import Replay, warmup_steps
from kvpager.replay.sweep import Source, load_stream

CLAIMS = ()
POLICY, HBM = "blend", 0.10
OTHERS = ("blend", "lru", "lfu", "ema", "access-ema", "belady")
CASES = [(policy, HBM) for policy in OTHERS] + [(policy, size) for size in (0.054, 0.25) for policy in ("blend", "ema", "belady")]
"""Replayed of each log."""
TEXTS = ("code", "docs", *SWITCHES)
EMULATED = (Evidence.EMULATED, Evidence.MEASURED)


def run(study: Study) -> None:
    """Run all three parts."""
    _texts(study)
    _questions(study)
    _long(study)


def _shape(study: Study, text: str) -> tuple[int, int]:
    """Context and steps of a text."""
    if study.quick:
        return 1024, 64
    return (3968, 256) if text in SWITCHES else (3968, 128)


def _texts(study: Study) -> None:
    texts = TEXTS[:1] if study.quick else TEXTS
    rows = {text: study.once(f"{text} {SELECTOR} {POLICY}", partial(_text, study, text)) for text in texts}
    at = [_at(found, POLICY) for found in rows.values()]
    gap = interval([100 * (row["block_hit_ratio"] - row["predicted_by_dense"]) for row in at])
    worst = max(abs(100 * (row["block_hit_ratio"] - row["predicted_by_dense"])) for row in at)
    hits = interval([100 * row["block_hit_ratio"] for row in at])
    study.result(
        "closed loop against dense recording", f"{POLICY} at 10 %, reading 10 % by {SELECTOR}, on {len(at)} texts: "
        f"hits of {hits.value:.1f} %, {gap.value:+.1f} points from what the dense recordings predict; at most {worst:.1f} on one "
        "text (goal 3)",
        value=gap.value, low=gap.low, high=gap.high, unit="points", labels=EMULATED,
    )  # fmt: skip
    for other in ("lru", "lfu", "ema"):
        theirs = [_at(found, other)["block_hit_ratio"] for found in rows.values()]
        gain = interval(row["block_hit_ratio"] - their for row, their in zip(at, theirs, strict=True))
        study.sign(f"closed loop, 10 %: {POLICY} minus {other}", gain)
    mass, low = (interval([100 * row[name] for row in at]) for name in ("mass_hit_ratio", "p5_head_mass"))
    loss, same = (interval([100 * row[name] for row in at]) for name in ("perplexity_change", "same_next_token"))
    if not study.quick:
        _switches(study, [rows[text] for text in SWITCHES])
    study.result(
        "closed loop, output", f"of the mass that is read {mass.value:.1f} % is in HBM, {low.value:.1f} % for the head at the 5th "
        f"percentile; perplexity changes by {loss.value:+.2f} % against dense attention, which would say the same next token in "
        f"{same.value:.1f} % of the cases",
        value=loss.value, low=loss.low, high=loss.high, unit="%", labels=EMULATED,
    )  # fmt: skip


def _switches(study: Study, found: list[list[dict[str, Any]]]) -> None:
    """Hits before and after the topic changes."""
    change = study.scale.switch_at
    parts = {
        "before": slice(change - 32, change),
        "in the first 8 steps": slice(change, change + 8),
        "later": slice(change + 32, None),
    }

    def hits(policy: str, part: slice) -> list[float]:
        return [100 * sum(row["hits"][part]) / sum(row["accesses"][part]) for row in (_at(rows, policy) for rows in found)]

    policies = (POLICY, "ema", "lfu", "belady")
    told = "; ".join(
        f"{name}: " + ", ".join(f"{policy} {interval(hits(policy, part)).value:.0f}" for policy in policies)
        for name, part in parts.items()
    )
    lag = interval(
        ours - bound
        for ours, bound in zip(
            hits(POLICY, parts["in the first 8 steps"]), hits("belady", parts["in the first 8 steps"]), strict=True
        )
    )
    study.result(
        "closed loop, after a switch of topic", f"hits in % on {len(found)} texts, {told}. Until it has seen the new topic, {POLICY} is "
        f"{-lag.value:.0f} points behind Belady",
        value=lag.value, low=lag.low, high=lag.high, unit="points", labels=EMULATED,
    )  # fmt: skip


def _at(rows: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    return next(row for row in rows if (row["policy"], row["hbm_fraction"]) == (policy, HBM))


def _text(study: Study, text: str) -> list[dict[str, Any]]:
    """Read a text in the closed loop; replay its log under all policies and sizes, and the dense recording under one."""
    context, steps = _shape(study, text)
    model = load("smollm2", study.work)
    tokens = tokens_of(text, model, study.work, context, steps, study.scale.switch_at)
    log = study.work / "runs" / f"{text}-{context}-{steps}.zarr"
    live = logged(model, tokens, context, log, policy=POLICY, hbm_fraction=HBM)
    quality = against_dense(model, tokens[:context], live["tokens"], live["logits"])
    stream = load_stream(Source(study.recording(text, context_tokens=context, steps=steps), f"topk_mass:read_fraction={READ}"))
    warmup, rows = warmup_steps(steps), []
    for policy, size in CASES[: len(OTHERS)] if study.quick else CASES:
        row = of_log(log, policy, size, warmup)
        if policy == POLICY:
            counts = Replay(stream, make_policy(policy), int(size * stream.units), warmup=warmup).run()
            row |= {"predicted_by_dense": counts.hits / counts.accesses, "read_mass": live["read_mass"], **quality}
        rows.append({"part": "text", "text": text, "context_tokens": context, **row})
    return rows


def _questions(study: Study) -> None:
    """Questions after their context: what dense attention answers and the closed loop loses."""
    trials = 1 if study.quick else 14
    row = study.once(f"needle {trials} {SELECTOR} {POLICY}", partial(_needles, study, trials))[0]
    study.result(
        "questions after their context", f"of {row['of']} questions that dense attention answers, {row['lost']} are lost "
        f"when a tenth is read by {SELECTOR} over HBM of 10 % under {POLICY} (goal: at most 5 of at least 100)",
        value=100 * row["lost_share"], low=100 * row["lost_low"], high=100 * row["lost_high"], unit="%", labels=EMULATED,
    )  # fmt: skip


def _needles(study: Study, trials: int) -> list[dict[str, Any]]:
    from kvpager.evaluate import evaluate
    from kvpager.evaluate.dense import DenseRunner, ModelLanguage
    from kvpager.evaluate.outcome import Kept
    from kvpager.live.opening import open_store, plan_budget
    from kvpager.live.transformers.runner import TieredRunner

    model = load("smollm2", study.work)
    tokens = 900 if study.quick else 1900
    budget = plan_budget(model.geometry, context_tokens=tokens + 512, hbm=f"{50 * (1 + 2 * HBM):g}%", rows=2, selector=SELECTOR)
    kept = Kept(study.work / "needles", f"{model.weights_sha256} {POLICY} {budget.hbm_units}")
    with (
        TemporaryDirectory(prefix="kv-", dir=study.work) as folder,
        open_store(model, Path(folder) / "store", budget, policy=POLICY, selector=SELECTOR) as store,
    ):
        runner = TieredRunner(model, store, measure_every=4)
        task = f"needle:trials={trials},tokens={tokens}"
        told = lambda what, done, total: study.say(f"{what}: {done} of {total}")  # noqa: E731
        found = evaluate(DenseRunner(model), {"tiered": runner}, [task], ModelLanguage(model), told, "turn", kept)
    (judged,) = found["tasks"]
    keys = ("right", "gained", "lost", "of", "lost_share", "lost_low", "lost_high", "kl_mean", "read_mass")
    row = {key: judged["runners"]["tiered"][key] for key in keys}
    return [{"part": "questions", "context_tokens": tokens, "policy": POLICY, "hbm_units": budget.hbm_units, **row}]


def _long(study: Study) -> None:
    """A long answer of the model's own."""
    new = 64 if study.quick else 1024
    rows = study.once(f"long {new} {SELECTOR} {POLICY}", partial(_generated, study, new))
    row, bound, quarter = _at(rows, POLICY), _at(rows, "belady"), new // 4
    first, last = (
        100 * sum(row["hits"][part]) / sum(row["accesses"][part]) for part in (slice(quarter, 2 * quarter), slice(-quarter, None))
    )
    study.result(
        "long answer", f"over {new} tokens that the model writes after {row['context_tokens']:,}, {POLICY} at 10 % hits "
        f"{100 * row['block_hit_ratio']:.1f} % (Belady {100 * bound['block_hit_ratio']:.1f} %), {first:.1f} % in its second and "
        f"{last:.1f} % in its last quarter; {100 * row['moves_share']:.2f} % of all units move a step. Greedy, so small a model repeats itself: "
        f"{row['distinct_tokens']} different tokens",
        value=100 * row["block_hit_ratio"], unit="%", labels=EMULATED,
    )  # fmt: skip


def _generated(study: Study, new: int) -> list[dict[str, Any]]:
    context = 1024 if study.quick else 1920
    model = load("smollm2", study.work)
    tokens = tokens_of("report", model, study.work, context, 1, 0)[:context]
    log = study.work / "runs" / f"long-{context}-{new}.zarr"
    live = logged(model, tokens, context, log, policy=POLICY, hbm_fraction=HBM, new_tokens=new)
    distinct = len(np.unique(live["tokens"]))
    about = {"part": "long", "context_tokens": context, "distinct_tokens": distinct, "read_mass": live["read_mass"]}
    return [about | of_log(log, policy, HBM, warmup_steps(new)) for policy in OTHERS]
