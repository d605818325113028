"""Commands on request traces: convert them, and draw how their hits grow with the cache."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Json, app, command_line, print_json, split_names, stage
from kvpager.errors import BadInput

if TYPE_CHECKING:
    from kvpager.traces.requests import RequestTrace

__all__ = [
    "OF_REQUESTS", "BlocksModel", "FormatOption", "Mode", "Quota", "SkipBad", "Tiers", "TiersSemantics", "TiersSystem", "Warmup",
    "Write", "convert", "curve", "replay_requests",
]  # fmt: skip

_PANEL = "Request traces only"
Warmup = Annotated[float, typer.Option(rich_help_panel=_PANEL, help="Share of the requests that goes first and is not counted.")]
BlocksModel = Annotated[
    str | None, typer.Option(rich_help_panel=_PANEL, help="Whose KV the blocks hold: sizes may then be in bytes.")
]
Tiers = Annotated[
    str | None, typer.Option(rich_help_panel=_PANEL, help="Replay over tiers, fastest first, e.g. hbm=40GiB,dram=30%,nvme.")
]
Mode = Annotated[str, typer.Option(rich_help_panel=_PANEL, help="Of tiers: inclusive (the last keeps copies) or exclusive.")]
Write = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PANEL, help="When the last tier is written: through, demotion, second-hit.", show_default="by mode"
    ),
]
TiersSemantics = Annotated[
    str, typer.Option(rich_help_panel=_PANEL, help="Of tiers: prefix (only a prompt's leading run hits) or block.")
]
Quota = Annotated[
    list[str] | None,
    typer.Option(rich_help_panel=_PANEL, help="A tenant's own room in a tier, e.g. nvme/ann=30%; give it again for more."),
]
TiersSystem = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PANEL,
        help="Of tiers: fetch or recompute each block by this system's rates; see 'kvpager list systems'.",
    ),
]
OF_REQUESTS = frozenset({"format", "skip_bad", "warmup", "model", "tiers", "mode", "write", "quota", "semantics", "system"})
"""Options of ``replay`` that only a request trace takes."""

FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Of a request trace, where its name and first bytes do not tell; see 'kvpager list formats'."),
]
SkipBad = Annotated[int, typer.Option(min=0, help="Malformed lines of a request trace to skip at most; they are counted.")]


@app.command(epilog="Example: kvpager convert conversation_trace.jsonl.gz -o conversation.parquet")
def convert(
    trace: Annotated[Path, typer.Argument(help="A request trace of any known format, gzip included.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to create: .parquet, or .oracleGeneral.")],
    form: FormatOption = None,
    skip_bad: SkipBad = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at the output path.")] = False,
    json: Json = False,
) -> None:
    """Convert a request trace to kvpager's Parquet file, piece by piece, or for libCacheSim to its oracleGeneral."""
    from kvpager.traces.formats import convert as pieces_of
    from kvpager.traces.formats.oracle_general import write_oracle_general
    from kvpager.traces.requests import gather
    from kvpager.traces.requeststore import write_requests

    if out.suffix not in (".parquet", ".oracleGeneral"):
        raise BadInput(f"output {str(out)!r} ends neither in .parquet nor in .oracleGeneral: name one of the two forms")
    found: dict[str, Any] = {"trace": out.name}
    pieces = _counted(pieces_of(trace, form, skip_bad=skip_bad), found)
    if out.suffix == ".parquet":
        write_requests(out, pieces, overwrite=overwrite)
    elif out.exists() and not overwrite:
        raise BadInput(f"{str(out)!r} exists already: choose another name, or give --overwrite")
    else:
        write_oracle_general(out, gather(pieces, repr(str(trace))))
    document = found | {"evidence": "measured"}
    if json:
        print_json(document)
        return
    blocks = f"{found['blocks']:,} blocks of {found['block_size']} tokens, {found['distinct_blocks']:,} distinct"
    typer.echo(f"{out}: {found['requests']:,} requests, {blocks if found['blocks'] else 'no blocks: arrivals and lengths only'}")
    if found["source"].get("skipped"):
        typer.echo(f"skipped: {found['source']['skipped']}", err=True)


def _counted(pieces: Iterable[RequestTrace], found: dict[str, Any]) -> Iterator[RequestTrace]:
    """Pass pieces on, and leave in `found` what they were; tell on stderr how far it is."""
    requests = blocks = tokens = 0
    told, last = sys.stderr.isatty(), None
    for last in pieces:
        requests, blocks, tokens = requests + len(last), blocks + len(last.blocks), tokens + int(last.input_tokens.sum())
        if told:
            typer.echo(f"\rconvert: {requests:,} requests, {blocks:,} blocks", err=True, nl=False)
        yield last
    if told:
        typer.echo("", err=True)
    if last is not None:
        found |= {
            "requests": requests, "blocks": blocks, "distinct_blocks": last.distinct, "block_size": last.block_size,
            "chained": last.chained, "input_tokens": tokens, "tenants": len(last.tenants), "source": dict(last.source),
        }  # fmt: skip


def replay_requests(path: Path, given: dict[str, Any], *, json: bool) -> None:
    """Replay a request trace with the options of ``replay`` that were given.

    Parameters
    ----------
    path : Path
        The trace, of any known format.
    given : dict
        Options by name.
    json : bool
        Whether to print the document.

    Raises
    ------
    BadInput
        For an option that is for recordings of attention only, or that cannot be.
    """
    strange = sorted(given.keys() - OF_REQUESTS - {"trace", "policy", "capacity", "jobs", "json"})
    if strange:
        raise BadInput(
            f"{str(path)!r} is a request trace, for which --{strange[0].replace('_', '-')} means nothing: leave it out"
        )
    from kvpager.replay.asks import describe_requests
    from kvpager.replay.provenance import provenance
    from kvpager.report.requests import print_replay
    from kvpager.traces.formats import load_requests

    trace = load_requests(path, given.get("format"), skip_bad=given.get("skip_bad", 0))
    size = None if "model" not in given else _block_bytes(given["model"], trace.block_size)
    document = {**provenance(command_line(), 0), "trace": describe_requests(trace, path.name), "block_bytes": size}
    document |= _over_tiers(trace, given, size) if "tiers" in given else {"rows": _rows(trace, given, size)}
    if json:
        print_json(document)
    else:
        typer.echo("\n".join(print_replay(document)))


def _block_bytes(model: str, block_size: int) -> int:
    """Bytes of a block of all layers of a model whose cache grows with the context."""
    from kvpager.models import resolve

    return resolve(model).geometry.kv_bytes_per_token * block_size


def _rows(trace: RequestTrace, given: dict[str, Any], size: int | None) -> list[dict[str, Any]]:
    """Policies at sizes of one cache."""
    from kvpager.replay.asks import blocks_of
    from kvpager.replay.requests import Case
    from kvpager.replay.requests import replay_requests as run

    for name in ("mode", "write", "quota", "semantics", "system"):
        if name in given:
            raise BadInput(f"--{name} is for several tiers: give --tiers, e.g. --tiers hbm=10%,dram=30%,nvme")
    sizes = [blocks_of(text, trace.distinct, size) for text in split_names(given.get("capacity", "10%"))]
    names = split_names(given.get("policy", "lru"))
    cases = [Case(name, blocks) for blocks in sizes for name in names]
    with stage("replay") as bar:
        return run(trace, cases, warmup=given.get("warmup", 0.0), threads=given.get("jobs", 0), progress=lambda *how: bar(*how))


def _over_tiers(trace: RequestTrace, given: dict[str, Any], size: int | None) -> dict[str, Any]:
    """One replay over several tiers; with a system, also its seconds and wear."""
    from kvpager.replay.asks import tiers_of
    from kvpager.replay.hierarchy import Hierarchy, replay_hierarchy
    from kvpager.replay.hierarchyrow import row

    for name in ("policy", "capacity"):
        if name in given:
            raise BadInput(f"--{name} is for one cache: tiers are least recently used, and --tiers says their sizes")
    asked = Hierarchy(
        tiers_of(given["tiers"], given.get("quota", []), trace.distinct, size),
        mode=given.get("mode", "inclusive"), write_policy=given.get("write"), semantics=given.get("semantics", "prefix"),
    )  # fmt: skip
    found = replay_hierarchy(trace, asked, block_bytes=size, warmup=given.get("warmup", 0.0))
    document = {"hierarchy": row(found)}
    if "system" not in given:
        return document
    from kvpager.hardware import load
    from kvpager.models import resolve
    from kvpager.plan.load import load_of
    from kvpager.plan.reuse import Recomputing, block_fetch_s, fetch_or_recompute
    from kvpager.plan.wear import wear

    if size is None:
        raise BadInput("--system needs --model too: seconds follow from the bytes of a block and the model's arithmetic")
    system = load().systems[given["system"]]
    times = {
        tier.name: 0.0
        if tier.name == "hbm"
        else block_fetch_s(tier.name, size, system.bandwidth(tier.name), system.tier(tier.name).latency_s())
        for tier in asked.tiers
    }
    document["seconds"] = fetch_or_recompute(found, times, Recomputing(load_of(resolve(given["model"])), system.accelerator))
    last = asked.tiers[-1].name
    if last != "hbm":
        path = system.tier(last)
        document["wear"] = wear(found, path.medium, count=path.count)
    return document


@app.command(epilog="Example: kvpager curve requests.parquet --model llama-3.1-8b --tiers hbm=40GiB,dram=400GiB -o curve.html")
def curve(
    trace: Annotated[Path, typer.Argument(help="A request trace of any known format.", show_default=False)],
    policy: Annotated[str, typer.Option(help="Policies beside LRU's whole curve, comma-separated, at the sizes asked for.")] = "",
    capacity: Annotated[
        str, typer.Option(help="Sizes for these: shares of the distinct blocks (10%), blocks (500), or bytes with --model.")
    ] = "0.1%,1%,3%,10%,30%",
    semantics: Annotated[
        str, typer.Option(help="prefix: only a prompt's leading run hits. block: each access counts.")
    ] = "prefix",
    warmup: Warmup = 0.0,
    model: BlocksModel = None,
    tiers: Annotated[
        str | None, typer.Option(help="Sizes to mark, each added to those before it: hbm=40GiB,dram=400GiB.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture: .html, .png or .svg.")] = Path("curve.html"),
    form: FormatOption = None,
    skip_bad: SkipBad = 0,
    json: Json = False,
) -> None:
    """Draw how hits grow with the cache: LRU at every size in one pass, other policies, the optimum, and what none exceeds."""
    from kvpager.replay.asks import blocks_of, tiers_of
    from kvpager.replay.curve import curve as run
    from kvpager.replay.provenance import provenance
    from kvpager.report.hitcurve import SUFFIXES, draw_curve, print_curve

    if out.suffix not in SUFFIXES:
        raise BadInput(f"picture {str(out)!r} ends in none of {', '.join(SUFFIXES)}: name one of these")
    source, about = _source(trace, form, skip_bad)
    distinct = about["distinct_blocks"]
    size = None if model is None else _block_bytes(model, about["block_size"])
    sizes = [blocks_of(text, distinct, size) for text in split_names(capacity)]
    marks = [] if tiers is None else tiers_of(tiers, [], distinct, size)
    names = ["lru", *(split_names(policy) if policy else [])]
    with stage("curve") as bar:
        document = run(
            source, names, sizes, semantics=semantics, warmup=warmup, block_bytes=size or 0,
            progress=lambda done, total: bar(done, total),
        )  # fmt: skip
    document = {**provenance(command_line(), 0), **document, "trace": about}
    document["tiers"] = _marks(marks, size)
    document["picture"] = str(draw_curve(document, out))
    if json:
        print_json(document)
    else:
        typer.echo("\n".join([*print_curve(document), f"Picture: {document['picture']}"]))


def _source(path: Path, form: str | None, skip_bad: int) -> tuple[Any, dict[str, Any]]:
    """What to draw a curve of, and what it is: the trace, or what gives its pieces if it is long and a file of ours."""
    from kvpager.replay.asks import describe_requests
    from kvpager.replay.curve import curve_source
    from kvpager.traces.formats import load_requests

    if form is not None or path.suffix != ".parquet":
        trace = load_requests(path, form, skip_bad=skip_bad)
        return trace, describe_requests(trace, path.name)
    source = curve_source(path)
    if not callable(source):
        return source, describe_requests(source, path.name)
    about: dict[str, Any] = {}
    for _ in _counted(source(), about):
        pass
    return source, {"path": path.name, "accesses": about["blocks"], **about}


def _marks(tiers: list[Any], size: int | None) -> list[dict[str, Any]]:
    """Sizes of tiers and of all above them together, as a curve has them."""
    blocks, marks = 0, []
    for tier in tiers:
        if tier.capacity_blocks is None:
            raise BadInput(f"tier {tier.name!r} has no size that could be marked: write {tier.name}=40GiB, or leave it out")
        blocks += tier.capacity_blocks
        marks.append(
            {"name": tier.name, "capacity_blocks": blocks, **({} if size is None else {"capacity_bytes": blocks * size})}
        )
    return marks
