"""The main job, end to end: record a real model on a real text, replay the notes' ladder, report what is true."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvpager
from kvpager.evidence import Evidence
from kvpager.replay.ladder import LADDER_SIZES, NOTE_HBM_FRACTION, ladder
from kvpager.replay.study import CURVE_POLICIES, CURVE_SIZES, access_definitions, curves, heatmap
from kvpager.replay.sweep import Source
from kvpager.traces.attention import read_recording
from kvpager.traces.provenance import this_machine, versions_of
from kvpager.traces.recording import Recording

__all__ = ["FULL", "QUICK", "Scale", "bounds_of", "demo", "describe_recording", "provenance", "study"]

Progress = Callable[[int, int], None]
Stage = Callable[[str], AbstractContextManager[Progress]]
"""Opens a progress bar of that name."""


@dataclass(frozen=True)
class Scale:
    """How much the demo does."""

    context_tokens: int
    steps: int
    subsets: bool
    curve_sizes: tuple[float, ...]
    curve_policies: tuple[str, ...]
    curve_pools: tuple[str, ...]


QUICK = Scale(1536, 32, False, (0.054, 0.10, 0.25, 0.50), ("lru", "ema", "blend", "belady"), ("global", "equal"))
FULL = Scale(3968, 128, True, CURVE_SIZES, CURVE_POLICIES, ("global", "layer", "equal"))


def demo(out: Path, *, scale: Scale, stage: Stage, seed: int = 0, jobs: int = 0, pngs: bool = False) -> dict[str, Any]:
    """Record, replay, judge and report, into the directory `out`.

    The model is SmolLM2-135M-Instruct from its wheel; the text is the source of Python's ``argparse``
    module, so nothing is downloaded.

    Returns
    -------
    dict
        The document of the JSON contract; the report's path is under ``report``.

    Raises
    ------
    KVPagerError
        As the recorder and the report raise it.
    """
    from kvpager.live.transformers import SMOLLM2, RecordingDecoder, load_model
    from kvpager.report.html import write_pngs, write_report
    from kvpager.traces.recorder import read_text, record

    out.mkdir(parents=True, exist_ok=True)
    trace = out / "attention.zarr"
    text = Path(argparse.__file__)
    with stage("load model") as bar:
        model = load_model(SMOLLM2, progress=lambda what, done, total: bar(done, total))
    with stage("record") as bar:
        tokens = model.tokenize(read_text(text))
        whole = scale.context_tokens + scale.steps
        record(
            RecordingDecoder(model),
            tokens,
            out=trace,
            steps=scale.steps,
            context_tokens=scale.context_tokens,
            text_name=f"Python's {text.name}",
            command=f"kvpager record --model {SMOLLM2} --text {text.name} --context {scale.context_tokens} --steps {scale.steps}",
            progress=lambda what, done, total: bar(done + (scale.context_tokens if what == "decode" else 0), whole),
            overwrite=True,
        )
    document = study(trace, scale=scale, stage=stage, command="kvpager demo", seed=seed, jobs=jobs)
    with stage("report") as bar:
        document["report"] = str(write_report(document | {"report": str(out / "report.html")}, out / "report.html"))
        bar(1, 1)
    if pngs:
        with stage("pictures") as bar:
            write_pngs(document, out)
            bar(1, 1)
    return document


def study(trace: Path, *, scale: Scale, stage: Stage, command: str, seed: int = 0, jobs: int = 0) -> dict[str, Any]:
    """Replay a recording as the report needs it: ladder, curves, definitions, one head, locality, claims."""
    from kvpager.analysis import heads, locality
    from kvpager.claims.notes import closing_paragraph, judge

    recording = read_recording(trace)
    source = Source(trace)
    with stage("ladder") as bar:
        rungs = ladder(source, sizes=LADDER_SIZES, subsets=scale.subsets, seed=seed, jobs=jobs, progress=bar)
    with stage("curves") as bar:
        rows = curves(
            source,
            sizes=scale.curve_sizes,
            policies=scale.curve_policies,
            pools=scale.curve_pools,
            seed=seed,
            jobs=jobs,
            progress=bar,
        )
    with stage("definitions of access") as bar:
        definitions = access_definitions(source, hbm_fraction=LADDER_SIZES[0], seed=seed)
        bar(1, 1)
    document: dict[str, Any] = {
        **provenance(command, seed),
        "trace": describe_recording(recording, trace),
        "ladder": rungs,
        "bounds": bounds_of(rungs),
        "curves": rows,
        "access_definitions": definitions,
        "heatmap": heatmap(source, hbm_fraction=NOTE_HBM_FRACTION, seed=seed),
        "locality": locality.profile(recording),
        "head_types": heads.classify(recording),
    }
    document["claims"] = judge(document)
    document["conclusion"] = closing_paragraph(document)
    return document


def provenance(command: str, seed: int) -> dict[str, Any]:
    """Who made a document, with what: the keys that every JSON answer of a replay begins with."""
    return {
        "kvpager": kvpager.__version__,
        "command": command,
        "evidence": Evidence.SIMULATED.label,
        "machine": this_machine(),
        "versions": versions_of(["numpy", "torch", "transformers", "zarr"]),
        "seed": seed,
    }


def describe_recording(recording: Recording, path: Path) -> dict[str, Any]:
    """Return where a recording comes from and its shape, for a document."""
    header = recording.header
    return {
        "path": path.name,
        "model": header.model,
        "text": header.text,
        "mode": header.mode,
        "context_tokens": header.context_tokens,
        "steps": recording.steps,
        "blocks": recording.blocks,
        "block_size": header.block_size,
        "layers": len(header.layers),
        "kv_heads": header.num_kv_heads,
        "q_heads": header.num_q_heads,
        "fold": header.fold,
        "tokens_sha256": header.tokens_sha256,
        "weights_sha256": header.weights_sha256,
        "kv_bytes": recording.kv_bytes,
        "recorded": header.recorded,
    }


def bounds_of(rungs: dict[str, Any]) -> dict[str, float]:
    """Return the dense bound, and the largest bound among the rungs without prefetch."""
    plain = [row for row in rungs["rungs"] if "prefetch" not in row]
    return {"dense": plain[0]["dense_bound"], "belady": max(row["bound"] for row in plain)}
