"""Wrappers that compose with any policy, instead of flags inside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvpager.errors import BadInput
from kvpager.policies.wrappers.aggregated import Aggregated
from kvpager.policies.wrappers.pinned import Pinned
from kvpager.policies.wrappers.windowed import Windowed

__all__ = ["WRAPPERS", "Aggregated", "Pinned", "Windowed"]


def _tokens(text: str) -> int:
    if not text.isdecimal():
        raise BadInput("give a whole number of tokens, such as 16")
    return int(text)


WRAPPERS: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "sink": (Pinned, _tokens),
    "recent": (Windowed, _tokens),
    "max": (lambda policy, scope="layer": Aggregated(policy, "max", scope), str),
    "mean": (lambda policy, scope="layer": Aggregated(policy, "mean", scope), str),
}
"""Name in a written policy: how to make it, and how to read its one value."""
