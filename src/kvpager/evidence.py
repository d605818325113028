"""How a number is known, and the rule that labels never improve (law 9).

A result carries the union of its inputs' labels and of its method's label. Its `evidence` is the
weakest label present. Nothing is promoted: a simulation fed with an assumption stays an assumption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kvpager.errors import BadInput

__all__ = ["Evidence", "Quantity", "combine", "weakest"]


class Evidence(IntEnum):
    """How a number is known, weakest first."""

    ILLUSTRATIVE = 0
    ASSUMPTION = 1
    EXTERNAL_LITERATURE = 2
    VENDOR_SPEC = 3
    ANALYTICAL = 4
    SIMULATED = 5
    EMULATED = 6
    MEASURED = 7

    @property
    def label(self) -> str:
        """The word that is printed, e.g. ``"external-literature"``."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def of(cls, label: str) -> Evidence:
        """Parse a printed label; raises `BadInput` for an unknown one."""
        known = {evidence.label: evidence for evidence in cls}
        if label not in known:
            raise BadInput(f"evidence label {label!r} is unknown: use one of {', '.join(known)}")
        return known[label]


def combine(*groups: Iterable[Evidence]) -> frozenset[Evidence]:
    """Union of label groups: the labels of whatever is computed from all of them."""
    return frozenset(label for group in groups for label in group)


def weakest(labels: Iterable[Evidence]) -> Evidence:
    """The weakest label present; a number without any label is merely illustrative."""
    return min(labels, default=Evidence.ILLUSTRATIVE)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that says its unit and how it is known.

    Parameters
    ----------
    value : float
        The number.
    unit : str
        Unit of measure; ``"1"`` for a ratio.
    labels : frozenset of Evidence
        Every way of knowing that went into it.
    formula : str
        How it was computed, in one line.
    source : str
        Where inputs or formula come from.
    """

    value: float
    unit: str
    labels: frozenset[Evidence] = field(default_factory=frozenset)
    formula: str = ""
    source: str = ""

    @property
    def evidence(self) -> Evidence:
        """The weakest label present."""
        return weakest(self.labels)

    def to_json(self) -> dict[str, Any]:
        """Return the object form of the JSON contract: value, unit, evidence and, if set, the rest."""
        doc: dict[str, Any] = {"value": self.value, "unit": self.unit, "evidence": self.evidence.label}
        if len(self.labels) > 1:
            doc["labels"] = [label.label for label in sorted(self.labels)]
        if self.formula:
            doc["formula"] = self.formula
        if self.source:
            doc["source"] = self.source
        return doc
