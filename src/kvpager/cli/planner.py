"""Commands that plan: will it fit, how fast, at what cost, fetch or recompute; and measuring this machine for it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json, seconds, stage
from kvpager.errors import BadInput
from kvpager.units import format_bytes, parse_share, parse_tokens

if TYPE_CHECKING:
    from kvpager.hardware import Catalogue
    from kvpager.models import ModelFacts
    from kvpager.plan.assumptions import Assumptions
    from kvpager.plan.curve import HitCurve

__all__ = ["breakeven", "compare", "model", "plan", "probe"]

Model = Annotated[str, typer.Option("--model", help="A built-in name ('kvpager list models'), a config.json or its directory.")]
Context = Annotated[str, typer.Option(help="Tokens of each user's context, e.g. 4096 or 128K.")]
Users = Annotated[int, typer.Option(help="Users at the same time.")]
Read = Annotated[str | None, typer.Option("--read", help="Share of the KV a step reads, e.g. 5%; 100% = dense attention.")]
Trace = Annotated[Path | None, typer.Option(help="An attention trace: takes hits from its replay; needs --read below 100%.")]
Curve = Annotated[Path | None, typer.Option(help="Hits from a JSON document's curves: an earlier plan's, or a published result.")]
Slo = Annotated[str, typer.Option("--slo", help="Longest time of a token, e.g. 100ms.")]
Assume = Annotated[list[str] | None, typer.Option("--assume", help="Replace an assumption, e.g. mfu=0.5; may be repeated.")]
Own = Annotated[list[Path] | None, typer.Option("--catalogue", help="Your own hardware catalogue file; may be repeated.")]
Params = Annotated[str | None, typer.Option(help="Parameters, e.g. 8.03e9, where the config does not tell.")]
Explain = Annotated[bool, typer.Option("--explain", help="Print the derivation, one line a step.")]


@app.command(epilog="Example: kvpager model llama-3.1-70b --context 128K --tp 4 --dtype fp8")
def model(
    source: Annotated[str, typer.Argument(metavar="NAME|CONFIG", help="A built-in name, a config.json or its directory.")],
    context: Context = "128K",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks; bytes are of one of them.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Storage of KV, e.g. bf16, fp8, int4; default: the model's own.")] = None,
    explain: Explain = False,
    json: Json = False,
) -> None:
    """Show what a model's KV cache costs: architectural bytes, and what an engine reserves."""
    from kvpager.evidence import Evidence, derive, weakest
    from kvpager.models import resolve
    from kvpager.models.sizes import architectural_bytes, engine_reserved_bytes, growth, kv_dtype, rank_geometries, rule_of

    tokens, facts = parse_tokens(context), resolve(source)
    geometry, stored = rank_geometries(facts.geometry, tp)[0], None if dtype is None else kv_dtype(dtype)
    label = weakest({Evidence.ANALYTICAL, facts.evidence}).label
    rule = rule_of(geometry)
    kind = "the model's own dtype" if stored is None else stored.name
    shape = f"{len(geometry.layers)} layers, {len(geometry.full_layers)} with full attention, {kind}"
    exact, reserved = architectural_bytes(geometry, tokens, stored), engine_reserved_bytes(geometry, tokens, kv=stored)
    formula = f"sum over layers of bytes a token x min({tokens:,}, window), and states; {shape}"
    sizes = {
        "architectural": derive("architectural_bytes", exact, "B", formula, [], facts.source),
        "engine_reserved": derive("engine_reserved_bytes", reserved, "B", f"whole blocks, by the rule {rule}", [], "vLLM 0.32.0"),
    }
    document: dict[str, Any] = {
        "name": facts.name,
        "family": geometry.family,
        "layers": len(geometry.layers),
        "full_layers": len(geometry.full_layers),
        "tp": tp,
        "kv_bytes_per_token": growth(geometry, stored).bytes_per_token,
        "state_bytes": geometry.state_bytes,
        "bytes": {"context_tokens": tokens, "architectural": exact, "engine_reserved": reserved, "rule": rule},
        "evidence": label,
        "source": facts.source,
        "date": facts.date,
    }
    for name in ("params_total", "params_active"):
        if (value := getattr(facts, name)) is not None:
            document[name] = value.to_json()
    lines = [line for size in sizes.values() for line in size.explain()]
    if json:
        print_json(document | ({"explain": lines} if explain else {}))
        return
    typer.echo(f"{facts.name}: family {geometry.family}, {shape}" + (f", one of {tp} ranks" if tp > 1 else ""))
    typer.echo(f"KV per token               {format_bytes(document['kv_bytes_per_token'])}  [{label}]")
    if geometry.state_bytes:
        typer.echo(f"constant state             {format_bytes(geometry.state_bytes)}  [{label}]")
    for words, size in ((f"KV at {tokens:,} tokens", exact), (f"engine reserves ({rule})", reserved)):
        typer.echo(f"{words:<26} {format_bytes(size)} = {format_bytes(size, binary=False)}  [{label}]")
    typer.echo(f"source: {facts.source} ({facts.date or 'yours'})")
    if explain:
        typer.echo("\n".join(lines))


@app.command(epilog="Example: kvpager plan --model llama-3.1-70b --system b200-host-cxl --context 128K --users 16 --read 5%")
def plan(
    model: Model,
    system: Annotated[str, typer.Option(help="A system of the catalogue; see 'kvpager list systems'.")],
    context: Context = "128K",
    users: Users = 1,
    read: Read = None,
    trace: Trace = None,
    curve: Curve = None,
    slo: Slo = "100ms",
    sweep: Annotated[str | None, typer.Option(help="Points: 'context=4K,32K,users=1:64'; ranges first:last:step.")] = None,
    assume: Assume = None,
    catalogue: Own = None,
    params: Params = None,
    explain: Explain = False,
    json: Json = False,
) -> None:
    """Plan a model on a system: does it fit, how fast, for how many users, at what cost, and why."""
    from kvpager.plan.evaluate import as_json
    from kvpager.plan.single import headline_lines
    from kvpager.plan.single import plan as run

    known, facts = _catalogue(catalogue), _facts(model, params)
    chosen, share = known.systems[system], None if read is None else parse_share(read)
    hits, assumptions = _hits(trace, curve, share), _assumptions(assume)
    if sweep is not None:
        _sweep(facts, chosen, _points(sweep, context, users, share, hits), hits, seconds(slo), assumptions, json)
        return
    document = run(
        facts,
        chosen,
        parse_tokens(context),
        users,
        read_fraction=share,
        hit_curve=hits,
        slo_s=seconds(slo),
        assumptions=assumptions,
    )
    lines = headline_lines(document) if explain else []
    if json:
        print_json(as_json(document) | ({"explain": lines} if explain else {}))
        return
    from kvpager.report.planning import plan_lines

    typer.echo("\n".join(plan_lines(document)))
    if lines:
        typer.echo("\nHow this was derived:\n" + "\n".join(lines))


@app.command(
    epilog="Example: kvpager compare note-000-offload note-000-cxl b200x4-tp --model llama-3.1-70b --users 16 --read 5.5%"
)
def compare(
    systems: Annotated[list[str], typer.Argument(help="Systems of the catalogue; see 'kvpager list systems'.")],
    model: Model,
    context: Context = "128K",
    users: Users = 16,
    read: Read = None,
    trace: Trace = None,
    curve: Curve = None,
    slo: Slo = "100ms",
    assume: Assume = None,
    catalogue: Own = None,
    params: Params = None,
    explain: Explain = False,
    json: Json = False,
) -> None:
    """Compare systems at the same service level: capacity, time, power, purchase, years of running, cost."""
    from kvpager.evidence import Quantity
    from kvpager.evidence import explain as derivation
    from kvpager.plan.comparison import compare as run
    from kvpager.plan.evaluate import as_json

    known, share = _catalogue(catalogue), None if read is None else parse_share(read)
    document = run(
        [known.systems[name] for name in systems],
        _facts(model, params),
        parse_tokens(context),
        users,
        read_fraction=share,
        hit_curve=_hits(trace, curve, share),
        slo_s=seconds(slo),
        assumptions=_assumptions(assume),
    )
    lines: list[str] = []
    if explain:
        for row in document["rows"]:
            parts = [*row["answers"].values(), *row["owning"].values()]
            parts += row["serving_all"].values() if isinstance(row["serving_all"], dict) else []
            lines += [f"{row['system']}:", *derivation(*(part for part in parts if isinstance(part, Quantity)))]
    if json:
        print_json(as_json(document) | ({"explain": lines} if explain else {}))
        return
    from kvpager.report.planning import comparison_lines

    typer.echo("\n".join(comparison_lines(document)))
    if lines:
        typer.echo("\nHow this was derived:\n" + "\n".join(lines))


@app.command(epilog="Example: kvpager breakeven --model llama-3.1-70b --accelerator b200 --position 50000")
def breakeven(
    model: Model,
    accelerator: Annotated[str, typer.Option(help="An accelerator of the catalogue, e.g. b200.")],
    tokens: Annotated[int, typer.Option(help="Tokens of the block.")] = 16,
    position: Annotated[str, typer.Option(help="Tokens before it.")] = "50000",
    catalogue: Own = None,
    params: Params = None,
    explain: Explain = False,
    json: Json = False,
) -> None:
    """Show whether to fetch a block or to compute it again: grid, range, floor, break-even, decision."""
    from kvpager.evidence import explain as derivation
    from kvpager.plan.economics import breakeven as run
    from kvpager.plan.evaluate import as_json

    device = _catalogue(catalogue).accelerators[accelerator]
    document = run(_facts(model, params), device, tokens, 0 if position == "0" else parse_tokens(position))
    note, here = document["note"], document["here"]
    parts = (note["lowest"], note["highest"], note["floor_s"], here["alone"]["lowest"], here["piggybacked"]["highest"])
    lines = derivation(*parts, *document["modes"].values(), document["breakeven"]["bandwidth_bytes_per_s"]) if explain else []
    if json:
        print_json(as_json(document) | ({"explain": lines} if explain else {}))
        return
    from kvpager.report.planning import breakeven_lines

    typer.echo("\n".join(breakeven_lines(document)))
    if lines:
        typer.echo("\nHow this was derived:\n" + "\n".join(lines))


@app.command(epilog="Example: kvpager probe --dir /data --out machine.toml")
def probe(
    directory: Annotated[Path, typer.Option("--dir", help="A directory on the disk to measure.")] = Path("."),
    seconds: Annotated[float, typer.Option(help="Time to spend.")] = 20.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Catalogue file to write, for --catalogue.")] = None,
    json: Json = False,
) -> None:
    """Measure this machine's memory, disk and GPU as a hardware profile; scratch files are removed."""
    from kvpager.hardware.probe import probe as run
    from kvpager.hardware.profile import write_profile

    with stage("probe") as bar:
        profile = run(directory, seconds, lambda what, done, total: bar(done, total))
    if out is not None:
        write_profile(profile, out)
    if json:
        print_json(profile)
        return
    for section in ("tiers", "links"):
        for name, entry in profile[section].items():
            typer.echo(f"{name}: {entry.get('title', '')}")
            for key, value in entry.items():
                if isinstance(value, dict) and "value" in value:
                    shown = f"{value['value']:.4g} {value['unit']}  [{value.get('label', 'measured')}]"
                    typer.echo(f"  {key.replace('_', ' '):<28} {shown}")
    if out is not None:
        typer.echo(f"profile: {out}; use it with --catalogue {out}")


def _catalogue(paths: Sequence[Path] | None) -> Catalogue:
    from kvpager.hardware import load

    return load(tuple(paths or ()))


def _facts(name: str, params: str | None) -> ModelFacts:
    from kvpager.evidence import Evidence, Quantity
    from kvpager.models import resolve

    facts = resolve(name)
    if params is None:
        return facts
    try:
        count = float(params)
    except ValueError:
        count = 0.0
    if not 1e6 <= count < 1e15:
        raise BadInput(f"--params {params!r} is no number of parameters: write for example 8.03e9")
    stated = Quantity(count, "parameters", frozenset({Evidence.ASSUMPTION}), "", "as asked", "params")
    return replace(facts, params_total=stated, params_active=stated)


def _assumptions(pairs: Sequence[str] | None) -> Assumptions:
    from kvpager.plan.assumptions import DEFAULT

    changes: dict[str, float] = {}
    for pair in pairs or ():
        name, _, value = pair.partition("=")
        try:
            changes[name.strip()] = float(value)
        except ValueError:
            raise BadInput(f"--assume {pair!r} is not NAME=NUMBER: write for example mfu=0.5") from None
    return DEFAULT.but(**changes)


def _hits(trace: Path | None, curve: Path | None, share: float | None) -> HitCurve | None:
    """Hits by size of HBM: replayed from a trace, or read from a document."""
    if curve is not None:
        if trace is not None:
            raise BadInput(f"--trace {trace.name!r} and --curve {curve.name!r} both give hits: drop one of them")
        from kvpager.plan.curve import read_curve

        return read_curve(curve, share)
    if trace is None:
        return None
    if share is None or share >= 1.0:
        raise BadInput(f"--trace {trace.name!r} needs --read, the share of the KV that a step reads: give for example --read 10%")
    from kvpager.plan.trace import hit_curve_of

    with stage("replay") as bar:
        return hit_curve_of(trace, share, progress=lambda done, total: bar(done, total, "replay"))


def _points(text: str, context: str, users: int, share: float | None, curve: HitCurve | None) -> dict[str, list[float]]:
    """Axes of a sweep: what it names, and the options for the rest."""
    axes: dict[str, list[float]] = {
        "context": [float(parse_tokens(context))],
        "users": [float(users)],
        "read": [curve.read_fraction if curve is not None else 1.0 if share is None else share],
    }
    for part in re.split(r"[,\s]+(?=\w+=)", text.strip()):
        name, equals, values = part.partition("=")
        if not equals or not values:
            raise BadInput(f"--sweep {text!r} cannot be read at {part!r}: write for example 'context=4K,32K,users=1:64'")
        if name not in axes:
            raise BadInput(f"--sweep has no axis {name!r}: use {', '.join(axes)}")
        if name == "read" and curve is not None:
            raise BadInput(
                "--sweep read=… does not go with --trace or --curve, whose hits belong to one read fraction: drop one of them"
            )
        axes[name] = [number for value in values.split(",") for number in _values(name, value)]
    return axes


def _values(axis: str, text: str) -> list[float]:
    ends = text.split(":")
    if axis == "read":
        if len(ends) > 1:
            raise BadInput(f"--sweep read={text} is a range: list the shares, for example read=1%,5%,10%")
        return [parse_share(text)]
    numbers = [parse_tokens(end) for end in ends]
    if len(numbers) == 1:
        return [float(numbers[0])]
    first, last, step = (*numbers, 1)[:3]
    if len(numbers) > 3 or last < first:
        raise BadInput(f"--sweep {axis}={text} is no range: write first:last or first:last:step")
    return [float(number) for number in range(first, last + 1, step)]


def _sweep(
    facts: ModelFacts,
    system: Any,
    axes: dict[str, list[float]],
    curve: HitCurve | None,
    slo_s: float,
    assumptions: Assumptions,
    json: bool,
) -> None:
    import numpy as np

    from kvpager.plan.evaluate import as_json
    from kvpager.plan.sweeping import sweep as run

    grid = np.array(list(itertools.product(*axes.values())), dtype=np.float64).T
    columns = run(facts, system, *grid, hit_curve=curve, slo_s=slo_s, assumptions=assumptions)
    if json:
        lists = {name: as_json(values.tolist()) for name, values in columns.items()}
        print_json(
            {"model": facts.name, "system": system.name, "points": len(grid[0]), "evidence": "assumption", "columns": lists}
        )
        return
    from kvpager.report.planning import sweep_lines

    typer.echo("\n".join(sweep_lines(columns)))
