"""Figures of a part, picked from the document that the command line prints."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.part import Figure

__all__ = ["at", "figures"]


def figures(
    command: str, document: Any, named: Mapping[str, str], *, unit: str = "1", labels: Iterable[Evidence] = ()
) -> tuple[Figure, ...]:
    """Return the figures at some places of a document; those that are absent, words, or endless are left out.

    Parameters
    ----------
    command : str
        What prints it.
    document : dict or list
        As printed, quantities as objects or as `Quantity`.
    named : mapping of str to str
        What each figure is called, and its key.
    unit : str
        Of bare numbers.
    labels : iterable of Evidence
        Of bare numbers.
    """
    bare = frozenset(labels)
    found = []
    for label, key in named.items():
        value = at(document, key)
        if isinstance(value, Mapping):
            known = frozenset({Evidence.of(value["evidence"])})
            value = Quantity(value["value"], value["unit"], known, low=value.get("low"), high=value.get("high"))
        elif isinstance(value, int | float):
            value = Quantity(float(value), unit, bare)
        if isinstance(value, Quantity) and math.isfinite(value.value):
            found.append(Figure(label, value, command, key))
    return tuple(found)


def at(document: Any, key: str) -> Any:
    """Return what stands at a key, steps joined by dots; None if nothing does."""
    for step in key.split("."):
        try:
            document = document[int(step)] if isinstance(document, list) else document[step]
        except (KeyError, IndexError, TypeError):
            return None
    return document
