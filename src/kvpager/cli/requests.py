"""Commands on request traces: convert them, and draw how their hits grow with the cache."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput

if TYPE_CHECKING:
    from kvpager.traces.requests import RequestTrace

__all__ = ["FormatOption", "SkipBad", "convert"]

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
