"""The command that looks up what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput

__all__ = ["list_"]


@app.command("list", epilog="Example: kvpager list policies")
def list_(
    kind: Annotated[
        str, typer.Argument(help="models, systems, accelerators, families, policies, selectors, prefetchers or tiers.")
    ],
    json: Json = False,
) -> None:
    """List what there is of a kind, with what each one is."""
    from kvpager.hardware import load
    from kvpager.models import builtin_names, resolve
    from kvpager.models.base import MODELS
    from kvpager.policies import POLICIES
    from kvpager.prefetch import PREFETCHERS
    from kvpager.registry import summary
    from kvpager.selectors import SELECTORS
    from kvpager.tiers.base import TIERS

    kinds: dict[str, Any] = {
        "models": {name: resolve(name).title for name in builtin_names()} if kind == "models" else {},
        "systems": {name: system.title for name, system in load().systems.items()},
        "accelerators": {name: device.title for name, device in load().accelerators.items()},
        "families": MODELS,
        "policies": POLICIES,
        "selectors": SELECTORS,
        "prefetchers": PREFETCHERS,
        "tiers": TIERS,
    }
    if kind not in kinds:
        raise BadInput(f"unknown kind {kind!r}: choose among {', '.join(kinds)}")
    found = kinds[kind]
    entries = {name: found[name] if isinstance(found[name], str) else summary(found[name]) for name in found}
    if json:
        print_json({kind: entries})
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        typer.echo(f"{name:<{width}}  {text}")
