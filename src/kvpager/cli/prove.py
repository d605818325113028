"""Commands that prove: record a model, replay policies on it, report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from kvpager.cli.requests import (
    OF_REQUESTS,
    BlocksModel,
    FormatOption,
    Mode,
    Quota,
    SkipBad,
    Tiers,
    TiersSemantics,
    TiersSystem,
    Warmup,
    Write,
    replay_requests,
)
from kvpager.cli.root import Jobs, Json, Seed, app, command_line, load, print_json, screen, split_names, stage
from kvpager.errors import BadInput, CapacityError
from kvpager.units import parse_share, parse_tokens

__all__ = ["demo", "ladder", "record", "replay", "report"]

Trace = Annotated[Path, typer.Argument(help="An attention trace, from 'kvpager record'.", show_default=False)]
Replayable = Annotated[
    Path,
    typer.Argument(
        help="An attention trace, from 'kvpager record'; a run, from 'generate --record'; or a file of requests, of any format.",
        show_default=False,
    ),
]
SelectorOption = Annotated[str, typer.Option(help="What counts as an access; see 'kvpager list selectors'.")]
ClockOption = Annotated[
    str, typer.Option(help="layer: a batch per (step, layer). step: all layers judged at once; for comparison only.")
]
ObserveOption = Annotated[str, typer.Option(help="read: mass of read units only. all: of every unit; no live run has that.")]


@app.command(epilog="Example: kvpager demo --quick --out demo")
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="About 1.5K tokens of context and 32 steps.")] = False,
    out: Annotated[Path, typer.Option(help="Directory for the recording and the report.")] = Path("kvpager-demo"),
    png: Annotated[bool, typer.Option("--png", help="Also write each chart as a PNG file.")] = False,
    seed: Seed = 0,
    jobs: Jobs = 0,
    json: Json = False,
) -> None:
    """Record a real model on a real text, replay the notes' ladder, and report what is true."""
    from kvpager.demo import FULL, QUICK
    from kvpager.demo import demo as run

    document = run(out, scale=QUICK if quick else FULL, stage=stage, command=command_line(), seed=seed, jobs=jobs, pngs=png)
    if json:
        print_json(document)
    else:
        from kvpager.report.text import print_document

        print_document(document, screen())
        typer.echo(f"Report: {document['report']}")


@app.command(epilog="Example: kvpager record --model smollm2 --text book.txt --context 4096 --steps 128 -o book.zarr")
def record(
    text: Annotated[Path, typer.Option(help="The text to record on, UTF-8.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory to create, e.g. trace.zarr.", show_default=False)],
    model: Annotated[str, typer.Option(help="smollm2, a model directory, or a hub id.")] = "smollm2",
    steps: Annotated[int, typer.Option(help="Decode steps to record.")] = 128,
    context: Annotated[str | None, typer.Option(help="Tokens to prefill; default all that the steps leave over.")] = None,
    mode: Annotated[str, typer.Option(help="forced: the text's own continuation. free: the model's.")] = "forced",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a recording at the output path.")] = False,
    json: Json = False,
) -> None:
    """Record what a model's attention reads while it decodes a text."""
    from kvpager.traces.recorder import read_text
    from kvpager.traces.recorder import record as run

    content = read_text(text)
    tokens_wanted = None if context is None else parse_tokens(context)
    from kvpager.live.transformers import RecordingDecoder
    from kvpager.replay.provenance import describe_recording
    from kvpager.traces.attention import check_target, read_recording

    check_target(out, overwrite=overwrite)
    loaded = load(model)
    with stage("record") as bar:
        path = run(
            RecordingDecoder(loaded),
            loaded.tokenize(content),
            out=out,
            steps=steps,
            context_tokens=tokens_wanted,
            mode=mode,
            text_name=text.name,
            command=command_line(),
            progress=lambda what, done, total: bar(done, total, what),
            overwrite=overwrite,
        )
    document = {"trace": describe_recording(read_recording(path), path), "evidence": "measured"}
    if json:
        print_json(document)
    else:
        found = document["trace"]
        typer.echo(f"{path}: {found['steps']} steps after {found['context_tokens']} tokens, {found['blocks']} blocks")  # type: ignore[index]


@app.command(
    epilog="Example: kvpager replay trace.zarr --policy lru,ema,blend --capacity 5.4%,10%,25%\n\n"
    "Example: kvpager replay requests.jsonl.gz --policy prefix-lru,prefix-opt,arc --capacity 1%,10%\n\n"
    "Example: kvpager replay requests.parquet --tiers hbm=40GiB,dram=200GiB,nvme --model llama-3.1-8b --system h200-host-cxl"
)
def replay(
    context: typer.Context,
    trace: Replayable,
    policy: Annotated[
        str,
        typer.Option(
            help="Policies, comma-separated; 'ema+sink:16' pins a block. See 'kvpager list policies'; for requests (default lru) "
            "'list request-policies' and 'prefix-policies'."
        ),
    ] = "blend",
    capacity: Annotated[
        str, typer.Option(help="Sizes: shares of all KV or blocks (10%), bytes (8MiB), or units or blocks (500).")
    ] = "10%",
    pool: Annotated[str, typer.Option(help="Who shares HBM: global, layer, equal.")] = "global",
    prefetch: Annotated[str | None, typer.Option(help="A prefetcher; see 'kvpager list prefetchers'.")] = None,
    prefetch_share: Annotated[str, typer.Option(help="Most units fetched ahead in a step, as a share of HBM.")] = "1%",
    selector: SelectorOption = "topp_mass",
    granularity: Annotated[str, typer.Option(help="What has residency of its own: head or layer.")] = "head",
    dram: Annotated[
        str | None, typer.Option(help="Tier 2 as a share of all KV; without it, all misses come from tier 3.")
    ] = None,
    clock: ClockOption = "layer",
    observe: ObserveOption = "read",
    form: FormatOption = None,
    skip_bad: SkipBad = 0,
    warmup: Warmup = 0.0,
    model: BlocksModel = None,
    tiers: Tiers = None,
    mode: Mode = "inclusive",
    write: Write = None,
    semantics: TiersSemantics = "prefix",
    quota: Quota = None,
    system: TiersSystem = None,
    seed: Seed = 0,
    jobs: Jobs = 0,
    json: Json = False,
) -> None:
    """Replay policies on recorded attention, a run, or requests: what each would have hit, and what no policy can exceed."""
    given = {"format" if name == "form" else name: value for name, value in context.params.items() if _was_given(context, name)}
    if trace.is_file() and trace.suffix != ".zarr":  # recordings are folders
        replay_requests(trace, given, json=json)
        return
    from kvpager.policies import make_policy
    from kvpager.traces.run import RUN_FORMAT
    from kvpager.traces.store import format_of

    for name in sorted(OF_REQUESTS & given.keys()):
        raise BadInput(f"--{name.replace('_', '-')} is for request traces, and {str(trace)!r} is none: leave it out")
    for name in split_names(policy):
        make_policy(name)
    if format_of(trace) == RUN_FORMAT:
        _replay_run(trace, given, jobs, json)
    else:
        _replay_attention(trace, context.params, jobs, json)


def _replay_attention(trace: Path, asked: dict[str, Any], jobs: int, json: bool) -> None:
    """Replay recorded attention as `asked`, by the names of the options."""
    from kvpager.claims.uncalibrated import printed
    from kvpager.replay.attention import capacity_units
    from kvpager.replay.provenance import describe_recording, provenance
    from kvpager.replay.row import Case
    from kvpager.replay.sweep import Source, load_stream, sweep

    names, seed, pool, prefetch = split_names(asked["policy"]), asked["seed"], asked["pool"], asked["prefetch"]
    source = Source(trace, asked["selector"], asked["clock"], asked["observe"])
    stream = load_stream(source, asked["granularity"])
    sizes = [_size(text, stream.units, stream.recording.kv_bytes) for text in split_names(asked["capacity"])]
    for size in sizes:
        capacity_units(stream, size, pool)
    share = 0.0 if asked["dram"] is None else parse_share(asked["dram"], whole_bytes=stream.recording.kv_bytes)
    ahead = parse_share(asked["prefetch_share"])
    cases = [
        Case(
            name,
            size,
            pool,
            prefetcher=prefetch,
            prefetch_share=ahead,
            dram_fraction=share,
            granularity=asked["granularity"],
            seed=seed,
        )
        for size in sizes
        for name in names
    ]
    with stage("replay") as bar:
        rows = sweep(source, cases, jobs=jobs, progress=bar)
    document = {
        **provenance(command_line(), seed),
        "trace": describe_recording(stream.recording, trace),
        "rows": rows,
        "uncalibrated": printed(*_used(names, prefetch)),
    }
    _show_replay(document, json)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _replay_run(trace: Path, given: dict[str, Any], jobs: int, json: bool) -> None:
    """Replay a live run with its own settings but for those that are given; "none" is no prefetcher, no tier 2."""
    from kvpager.claims.uncalibrated import printed
    from kvpager.replay.provenance import provenance
    from kvpager.replay.runrow import RunAsk, describe_run, run_rows
    from kvpager.traces.runstore import read_run

    fixed = sorted(given.keys() & {"selector", "granularity", "clock", "observe", "prefetch_share"})
    if fixed:
        raise BadInput(
            f"{str(trace)!r} is the recording of a run, whose {fixed[0].replace('_', ' ')} was fixed when it ran: leave "
            f"--{fixed[0].replace('_', '-')} out, or record another run"
        )
    recording = read_run(trace)
    kv_bytes = recording.units * recording.header.unit_bytes
    names = split_names(given["policy"]) if "policy" in given else [recording.header.policy]
    sizes = [_size(text, recording.units, kv_bytes) for text in split_names(given["capacity"])] if "capacity" in given else [None]
    dram = given.get("dram")
    share = 0.0 if dram == "none" else None if dram is None else _size(dram, recording.units, kv_bytes)
    prefetch, seed = given.get("prefetch"), given.get("seed")
    asks = [RunAsk(name, size, given.get("pool"), prefetch, share, seed) for size in sizes for name in names]
    with stage("replay") as bar:
        rows = run_rows(trace, asks, jobs=jobs, progress=bar)
    document = {
        **provenance(command_line(), recording.header.seed if seed is None else seed),
        "trace": describe_run(recording, trace),
        "rows": rows,
        "uncalibrated": printed(*_used(names, None if prefetch == "none" else prefetch or recording.header.prefetcher)),
    }
    _show_replay(document, json)


def _used(policies: list[str], prefetcher: str | None) -> list[str]:
    """Plug-ins whose constants a replay takes over, by kind and name."""
    return [f"policy {re.split('[:+]', name)[0]}" for name in policies] + (
        [f"prefetcher {prefetcher.split(':')[0]}"] if prefetcher else []
    )


def _show_replay(document: dict[str, Any], json: bool) -> None:
    if json:
        print_json(document)
        return
    from kvpager.report.text import print_context, print_rows

    rows = document["rows"]
    print_rows(rows, screen())
    print_context(rows[0], screen())
    for row in rows:
        if "log_parity" in row:
            typer.echo(
                f"log parity: {row['log_parity']['moves']} moves identical ({row['policy']}, {row['capacity_units']} units)"
            )
    _print_uncalibrated(document["uncalibrated"])


def _print_uncalibrated(lines: list[str]) -> None:
    """Say which constants a result takes from the notes as they are."""
    if lines:
        typer.echo("Constants taken over from the notes:\n  " + "\n  ".join(lines))


def _size(text: str, units: int, kv_bytes: int) -> float:
    """Read an HBM size as a share of all KV: a whole number above 0 without a unit counts units."""
    if text.isdigit() and int(text) > 0:
        if int(text) > units:
            raise CapacityError(
                f"size {text!r} is more than all {units} units of the recording: give fewer, or a share such as 10%"
            )
        return int(text) / units
    return parse_share(text, whole_bytes=kv_bytes)


@app.command(epilog="Example: kvpager ladder trace.zarr --hbm 6.84% --subsets")
def ladder(
    trace: Trace,
    hbm: Annotated[str, typer.Option(help="HBM in front, as a share of all KV or in bytes.")] = "0.0684",
    subsets: Annotated[
        bool, typer.Option("--subsets", help="Also all 16 subsets of the factors, Shapley shares, leave-one-out.")
    ] = False,
    selector: SelectorOption = "topp_mass",
    clock: ClockOption = "layer",
    observe: ObserveOption = "read",
    seed: Seed = 0,
    jobs: Jobs = 0,
    json: Json = False,
) -> None:
    """Replay the notes' five rungs, each beside its own bound, in global and equal pools."""
    from kvpager.claims.uncalibrated import printed
    from kvpager.replay.ladder import bounds_of
    from kvpager.replay.ladder import ladder as run
    from kvpager.replay.provenance import describe_recording, provenance
    from kvpager.replay.sweep import Source, load_stream

    source = Source(trace, selector, clock, observe)
    recording = load_stream(source).recording
    with stage("ladder") as bar:
        rungs = run(
            source,
            hbm_fraction=parse_share(hbm, whole_bytes=recording.kv_bytes),
            subsets=subsets,
            seed=seed,
            jobs=jobs,
            progress=bar,
        )
    document = {
        **provenance(command_line(), seed),
        "trace": describe_recording(recording, trace),
        "ladder": rungs,
        "bounds": bounds_of(rungs),
        "uncalibrated": printed("ladder"),
    }
    if json:
        print_json(document)
    else:
        from kvpager.report.text import print_document

        print_document(document, screen())
        _print_uncalibrated(printed("ladder"))


@app.command(epilog="Example: kvpager report demo/report.json -o report.html --png pictures")
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN.json", help="A document from 'demo' or 'ladder --json'.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="Directory for each chart as a PNG file.")] = None,
    json: Json = False,
) -> None:
    """Write the self-contained HTML report of a run."""
    import orjson

    from kvpager.report.html import write_pngs, write_report

    try:
        document = orjson.loads(run.read_bytes())
    except OSError as error:
        raise BadInput(
            f"run {str(run)!r} cannot be read ({error.strerror}): give a file from 'kvpager demo' or 'ladder --json'"
        ) from error
    except orjson.JSONDecodeError as error:
        raise BadInput(f"run {str(run)!r} is not JSON ({error}): give a file from 'kvpager demo' or 'ladder --json'") from error
    page = str(write_report(document, out))
    pictures = [] if png is None else [str(path) for path in write_pngs(document, png)]
    if json:
        print_json({"report": page, "pictures": pictures})
    else:
        typer.echo("\n".join([page, *pictures]))
