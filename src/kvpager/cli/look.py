"""Commands that look up: what there is, and what a model's cache costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput
from kvpager.units import format_bytes, parse_tokens

__all__ = ["list_", "model"]


@app.command(epilog="Example: kvpager model config.json --context 128K")
def model(
    source: Annotated[str, typer.Argument(metavar="CONFIG", help="A config.json, or a directory that holds one.")],
    context: Annotated[str, typer.Option(help="Tokens of context, e.g. 4096 or 128K.")] = "128K",
    json: Json = False,
) -> None:
    """Show what a model's KV cache costs, from its Hugging Face config."""
    from kvpager.models.base import geometry_of, load_config

    tokens = parse_tokens(context)
    geometry = geometry_of(load_config(source), Path(source).name)
    document = {
        "name": geometry.name,
        "family": geometry.family,
        "layers": len(geometry.layers),
        "full_layers": len(geometry.full_layers),
        "kv_bytes_per_token": geometry.kv_bytes_per_token,
        "bytes": {"context_tokens": tokens, "architectural": geometry.kv_bytes(tokens)},
        "evidence": "analytical",
    }
    if json:
        print_json(document)
        return
    typer.echo(
        f"{geometry.name}: family {geometry.family}, {document['layers']} layers, {document['full_layers']} with full attention"
    )
    typer.echo(f"KV per token   {format_bytes(geometry.kv_bytes_per_token)}  (analytical)")
    typer.echo(f"KV at {tokens:,} tokens   {format_bytes(geometry.kv_bytes(tokens))}  (analytical; windows stop growing)")


@app.command("list", epilog="Example: kvpager list policies")
def list_(
    kind: Annotated[str, typer.Argument(help="models, policies, selectors, prefetchers or tiers.")],
    json: Json = False,
) -> None:
    """List the plug-ins of a kind, with what each one is."""
    from kvpager.models.base import MODELS
    from kvpager.policies import POLICIES
    from kvpager.prefetch import PREFETCHERS
    from kvpager.registry import summary
    from kvpager.selectors import SELECTORS
    from kvpager.tiers.base import TIERS

    kinds: dict[str, Any] = {
        "models": MODELS,
        "policies": POLICIES,
        "selectors": SELECTORS,
        "prefetchers": PREFETCHERS,
        "tiers": TIERS,
    }
    if kind not in kinds:
        raise BadInput(f"unknown kind {kind!r}: choose among {', '.join(kinds)}")
    entries = {name: summary(kinds[kind][name]) for name in kinds[kind]}
    if json:
        print_json({kind: entries})
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        typer.echo(f"{name:<{width}}  {text}")
