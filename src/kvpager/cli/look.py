"""The command that looks up what there is."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput

__all__ = ["list_"]

_REGISTRIES = {
    "families": ("kvpager.models.base", "MODELS"),
    "formats": ("kvpager.traces.formats", "FORMATS"),
    "policies": ("kvpager.policies", "POLICIES"),
    "prefix-policies": ("kvpager.policies.requests.prefix.base", "PREFIX_POLICIES"),
    "request-policies": ("kvpager.policies.requests.base", "REQUEST_POLICIES"),
    "selectors": ("kvpager.selectors", "SELECTORS"),
    "prefetchers": ("kvpager.prefetch", "PREFETCHERS"),
    "summaries": ("kvpager.live.summaries", "SUMMARIES"),
    "tasks": ("kvpager.evaluate", "TASKS"),
    "tiers": ("kvpager.tiers.base", "TIERS"),
    "evictions": ("kvpager.store.eviction.base", "EVICTIONS"),
}
"""Where the registry of each kind of plug-in is: imported when it is asked for, since some kinds need more than others."""

_KINDS = ("models", "systems", "accelerators", *_REGISTRIES)


@app.command("list", epilog="Example: kvpager list policies")
def list_(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}.")],
    json: Json = False,
) -> None:
    """List what there is of a kind, with what each one is."""
    if kind not in _KINDS:
        raise BadInput(f"unknown kind {kind!r}: choose among {', '.join(_KINDS)}")
    entries = _entries(kind)
    if json:
        print_json({kind: entries})
        return
    width = max(map(len, entries))
    for name, text in entries.items():
        typer.echo(f"{name:<{width}}  {text}")


def _entries(kind: str) -> dict[str, str]:
    """What each one of a kind is, by name."""
    if kind == "models":
        from kvpager.models import builtin_names, resolve

        return {name: resolve(name).title for name in builtin_names()}
    if kind in ("systems", "accelerators"):
        from kvpager.hardware import load

        return {name: one.title for name, one in getattr(load(), kind).items()}
    from kvpager.registry import summary

    module, name = _REGISTRIES[kind]
    registry = getattr(import_module(module), name)
    return {name: summary(registry[name]) for name in registry}
