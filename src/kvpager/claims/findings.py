"""What experiments found: of the claims that no arithmetic settles, and of kvpager's own questions.

``ledger/findings.json`` is written by ``python -m experiments publish`` from the experiments' results, never by hand.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Finding", "constants", "finding", "findings", "published", "results"]

FILE = Path(__file__).parent / "ledger" / "findings.json"


class Finding(NamedTuple):
    """What an experiment says."""

    claim: str
    """Id in the ledger; of results that belong to no claim, their own name."""
    outcome: str
    """Supported, contradicted, inconclusive or not settleable here; empty for results."""
    says: str
    figure: Mapping[str, Any] | None
    """``value``, ``low`` and ``high`` (the 95 % interval, null where there is none), ``unit``."""
    evidence: str
    """The weakest of its labels."""
    labels: tuple[str, ...]
    picture: str
    """File under ``docs/img``, or empty."""
    experiment: str
    """E.g. ``"E3"``."""
    date: str
    command: str

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Finding:
        """Read an entry of the file."""
        return cls(**{**entry, "labels": tuple(entry["labels"])})

    @property
    def figure_text(self) -> str:
        """The figure as printed, ``"21.3 % (19.0 to 23.6)"``; empty if there is none."""
        if self.figure is None:
            return ""
        value, low, high = (self.figure[name] for name in ("value", "low", "high"))
        span = "" if low is None or high is None else f" ({_number(low)} to {_number(high)})"
        return f"{_number(value)} {self.figure['unit']}".rstrip() + span


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.3g}"


@functools.cache
def published() -> dict[str, Any]:
    """The whole file: ``claims`` and ``results``, lists of objects, ``constants`` by symbol and ``experiments`` by name."""
    document: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return document


@functools.cache
def findings() -> dict[str, Finding]:
    """What was found of each claim that an experiment settles, by its id."""
    return {entry["claim"]: Finding.of(entry) for entry in published()["claims"]}


@functools.cache
def results() -> tuple[Finding, ...]:
    """What was found beside the notes' claims."""
    return tuple(Finding.of(entry) for entry in published()["results"])


def constants() -> Mapping[str, Mapping[str, Any]]:
    """What constants of the notes were fitted to, by symbol of the register.

    Returns
    -------
    mapping
        ``value``, ``low`` and ``high`` (the 95 % interval), lists with a number for each that the constant has;
        ``within_1_point``, the range of each whose block hits are at most a point below the best; ``experiment``.
    """
    found: Mapping[str, Mapping[str, Any]] = published().get("constants", {})
    return found


def finding(claim: str) -> Finding | None:
    """What was found of `claim`; None if no experiment is about it."""
    return findings().get(claim)
