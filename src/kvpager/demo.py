"""The main job, end to end: record a real model on a real text, replay the notes' ladder, report what is true."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from kvpager.errors import BadInput
from kvpager.replay.ladder import LADDER_SIZES, NOTE_HBM_FRACTION, bounds_of, ladder
from kvpager.replay.provenance import describe_recording, provenance
from kvpager.replay.study import CURVE_POLICIES, CURVE_SIZES, access_definitions, curves, heatmap
from kvpager.replay.sweep import Source
from kvpager.traces.attention import check_target, read_recording

if TYPE_CHECKING:
    from kvpager.live.transformers import LoadedModel

__all__ = ["FULL", "QUICK", "Bar", "Scale", "demo", "live", "study"]


class Bar(Protocol):
    """Shows progress; another `what` opens another bar beside the stage's own."""

    def __call__(self, done: int, total: int, what: str = ...) -> None:
        """Show that `done` of `total` are done."""
        ...


Stage = Callable[[str], AbstractContextManager[Bar]]
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
    live_context_tokens: int
    live_steps: int


QUICK = Scale(1536, 32, False, (0.054, 0.10, 0.25, 0.50), ("lru", "ema", "blend", "belady"), ("global", "equal"), 768, 16)
FULL = Scale(3968, 96, True, CURVE_SIZES, CURVE_POLICIES, ("global", "layer", "equal"), 2048, 48)

LIVE_SELECTOR = "outlier_mean:read_fraction=0.1"
"""What a selective step of the live run reads."""

LOGGED, PREDICTED = ("blend", "10%"), ("ema", "20%")
"""Policy and HBM of the live run that is logged, and of the one that its log predicts."""


def demo(
    out: Path, *, scale: Scale, stage: Stage, command: str, seed: int = 0, jobs: int = 0, pngs: bool = False
) -> dict[str, Any]:
    """Record, replay, run, judge and report, into the directory `out`.

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
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"folder {str(out)!r} cannot be made ({error.strerror}): choose another place with --out") from error
    trace = out / "attention.zarr"
    check_target(trace, overwrite=True)
    import orjson

    from kvpager.live.transformers import SMOLLM2, RecordingDecoder, load_model
    from kvpager.report.file import write_file
    from kvpager.report.html import write_pngs, write_report
    from kvpager.traces.recorder import read_text, record

    text = Path(argparse.__file__)
    with stage("load model") as bar:
        model = load_model(SMOLLM2, progress=lambda what, done, total: bar(done, total, what))
    with stage("record") as bar:
        record(
            RecordingDecoder(model),
            model.tokenize(read_text(text)),
            out=trace,
            steps=scale.steps,
            context_tokens=scale.context_tokens,
            text_name=f"Python's {text.name}",
            command=f"kvpager record --model {SMOLLM2} --text {text.name} --context {scale.context_tokens} --steps {scale.steps}",
            progress=lambda what, done, total: bar(done, total, what),
            overwrite=True,
        )
    document = study(trace, scale=scale, stage=stage, command=command, seed=seed, jobs=jobs)
    with stage("live run") as bar:
        document["live"] = live(model, model.tokenize(read_text(text)), out, scale=scale, bar=bar, seed=seed)
    with stage("report") as bar:
        document["report"] = str(out / "report.html")
        write_report(document, out / "report.html")
        write_file(out / "report.json", orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))
        bar(1, 1)
    if pngs:
        with stage("pictures") as bar:
            write_pngs(document, out)
            bar(1, 1)
    return document


def live(model: LoadedModel, tokens: Sequence[int], out: Path, *, scale: Scale, bar: Bar, seed: int = 0) -> dict[str, Any]:
    """Run the model over real tiers: exactly, against dense attention; and selectively, against a prediction (law 3).

    One selective run is logged. Its log, replayed with another policy and another size, must say how many units a run
    that is made with these loads: the live run's tiers and the backing store count for themselves.
    """
    from kvpager.evaluate.dense import DenseRunner
    from kvpager.live.opening import open_store, plan_budget
    from kvpager.live.transformers.runner import TieredRunner
    from kvpager.replay.run import replay_run
    from kvpager.traces.runstore import read_run

    context, steps = scale.live_context_tokens, scale.live_steps
    log = out / "run.zarr"

    def run(policy: str, hbm: str, selector: str | None, record: Path | None = None) -> tuple[list[int], dict[str, Any]]:
        budget = plan_budget(model.geometry, context_tokens=context + steps, hbm=hbm, selector=selector)
        with (
            TemporaryDirectory(prefix="kv-", dir=out) as folder,
            open_store(
                model, folder, budget, policy=policy, selector=selector, seed=seed, lockstep=True, record=record, overwrite=True,
                command=f"kvpager demo, its live run with {policy} at {hbm}",
            ) as store,
        ):  # fmt: skip
            runner = TieredRunner(model, store, selective=selector is not None, measure_every=4)
            runner.start(tokens[:context])
            made = runner.generate(steps)
            found = store.document() | {"served_units": store.slabs.stats.read_units, "hbm_units": budget.hbm_units}
            runner.close()
        return made, found

    dense = DenseRunner(model)
    dense.start(tokens[:context])
    expected = dense.generate(steps)
    bar(1, 4)
    made, exact = run(*LOGGED, None)
    bar(2, 4)
    run(*LOGGED, LIVE_SELECTOR, log)
    bar(3, 4)
    _, selective = run(*PREDICTED, LIVE_SELECTOR)
    bar(4, 4)
    predicted = replay_run(read_run(log), policy=PREDICTED[0], hbm_units=selective["hbm_units"])
    loads = sum(sum(tier.get("read_units", {}).values()) for tier in selective["per_tier"].values())
    parity = {
        "simulated_loads": predicted.counts.loads,
        "live_loads": loads,
        "backing_store_reads": selective["served_units"],
        "policy": PREDICTED[0],
        "hbm_fraction": selective["hbm_fraction"],
    }
    return {
        "context_tokens": context,
        "new_tokens": steps,
        "tokens_identical": made == expected,
        "exact": exact,
        "selective": selective,
        "parity": parity,
        "evidence": "emulated",
    }


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
    with stage("plan") as bar:
        document["plan"] = _plan(trace, bar)
    document["claims"] = judge(document)
    document["conclusion"] = closing_paragraph(document)
    return document


def _plan(trace: Path, bar: Bar) -> dict[str, Any]:
    """Plan the notes' model and context on a machine that one can buy, with the hit curve of this recording.

    The curve is of another model and a shorter context: using it is an assumption, and labelled one.
    """
    from kvpager.hardware import load
    from kvpager.models import resolve
    from kvpager.plan.evaluate import as_json
    from kvpager.plan.single import plan
    from kvpager.plan.trace import hit_curve_of

    curve = hit_curve_of(trace, 0.10, progress=bar)
    planned = plan(resolve("llama-3.1-70b"), load().systems["b200-host-cxl"], 131_072, users=4, hit_curve=curve)
    document: dict[str, Any] = as_json(planned)
    return document
