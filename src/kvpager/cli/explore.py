"""The command that opens the explorer, or writes it as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json, seconds
from kvpager.errors import BadInput
from kvpager.units import parse_share, parse_tokens

if TYPE_CHECKING:
    from kvpager.explorer.choices import Choices

__all__ = ["explore"]


@app.command(
    epilog="Example: kvpager explore --model llama-3.1-8b --system b200-host-cxl --context 128K --users 32\n\n"
    "Example: kvpager explore --trace trace.zarr --export walk.html"
)
def explore(
    model: Annotated[
        str | None, typer.Option(help="A built-in name ('kvpager list models'), a config.json or its directory.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system of the catalogue; see 'kvpager list systems'.")] = None,
    context: Annotated[str | None, typer.Option(help="Tokens of each user's context, e.g. 4096 or 128K.")] = None,
    users: Annotated[int | None, typer.Option(help="Users at the same time.")] = None,
    read: Annotated[str | None, typer.Option("--read", help="Share of the KV a step reads, e.g. 5%.")] = None,
    slo: Annotated[str | None, typer.Option("--slo", help="Longest time of a token, e.g. 100ms.")] = None,
    trace: Annotated[Path | None, typer.Option(help="An attention trace; default: the demo's, if it has run here.")] = None,
    run: Annotated[Path | None, typer.Option(help="A document of 'demo' or 'ladder --json'; default: the demo's.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of 127.0.0.1 (8501); 0 = any free one.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the address only.")] = True,
    export: Annotated[Path | None, typer.Option(help="Write all parts as one HTML file instead, which needs no network.")] = None,
    json: Json = False,
) -> None:
    """Walk from the transformer to the comparison of systems, in the browser, computed for your own choices."""
    from kvpager.explorer.opening import check
    from kvpager.explorer.sources import chosen_by_default

    given: dict[str, Any] = {
        "model": model,
        "system": system,
        "context": None if context is None else parse_tokens(context),
        "users": users,
        "read": None if read is None else parse_share(read),
        "slo_ms": None if slo is None else round(1000 * seconds(slo), 9),
        "trace": None if trace is None else str(trace),
        "run": None if run is None else str(run),
    }
    choices = check(chosen_by_default(_chosen(given)))
    if export is not None:
        _export(choices, export, json)
    elif json:
        raise BadInput("--json says what was exported: give --export too, or ask 'kvpager plan --json' for figures")
    else:
        _serve(choices, port, browser)


def _chosen(given: dict[str, Any]) -> Choices:
    from kvpager.explorer.choices import Choices

    return Choices(**{name: value for name, value in given.items() if value is not None})


def _export(choices: Choices, path: Path, json: bool) -> None:
    from kvpager.explorer.static import write_page

    missing = write_page(choices, path)
    if json:
        print_json({"export": str(path), "without": missing})
        return
    typer.echo(str(path))
    for title in missing:
        typer.echo(f"without data: {title}")


def _serve(choices: Choices, port: int | None, browser: bool) -> None:
    from kvpager.explorer.serve import PORT, serve

    serve(choices, port=PORT if port is None else port, browser=browser, say=typer.echo)
