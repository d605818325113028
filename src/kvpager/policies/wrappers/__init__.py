"""Wrappers that compose with any policy, instead of flags inside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvpager.errors import BadInput
from kvpager.policies.wrappers.aggregated import Aggregated
from kvpager.policies.wrappers.pinned import Pinned
from kvpager.policies.wrappers.split import Split
from kvpager.policies.wrappers.windowed import Windowed

__all__ = ["WRAPPERS", "Aggregated", "Pinned", "Split", "Windowed"]


def _number(of: str, text: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"give a whole number of {of}, such as 16")
    return int(text)


WRAPPERS: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "sink": (Pinned, partial(_number, "tokens")),
    "recent": (Windowed, partial(_number, "tokens")),
    "split": (Split, partial(_number, "steps")),
    "max": (lambda policy, scope="layer": Aggregated(policy, "max", scope), str),
    "mean": (lambda policy, scope="layer": Aggregated(policy, "mean", scope), str),
}
"""Name in a written policy: how to make it, and how to read its one value."""
