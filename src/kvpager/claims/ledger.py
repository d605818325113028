"""The ledger: every claim of the two source notes in our own words, as data, with its history.

``ledger/`` holds the data: the claims by topic, ``givens.toml`` (their inputs, each once), ``history.toml`` (what
became of a claim; only ever appended to) and ``uncalibrated.toml``. Nothing is computed here: `kvpager.claims.check` re-derives.

The six *verdicts* are those of an audit of the text alone. *Status* is what became of a claim since.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kvpager.errors import InvariantError, UnknownName
from kvpager.evidence import Evidence

__all__ = [
    "CONTRADICTED",
    "INCONCLUSIVE",
    "NOT_SETTLEABLE",
    "SUPPORTED",
    "VERDICTS",
    "Claim",
    "Given",
    "Status",
    "claim",
    "claims",
    "givens",
    "history",
    "read",
    "status",
]

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE = "supported", "contradicted", "inconclusive", "not settleable here"

VERDICTS = (
    "reproduced",
    "reproduced-with-stated-rounding",
    "inconsistent",
    "not-derivable-from-the-text",
    "assumption",
    "empirical-claim-to-test",
)

_TOPICS = (
    "1-model", "2-locality", "3-links", "4-tiers", "5-scores", "6-latency", "7-cost", "8-recompute", "9-between-notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim, as the ledger has it.

    Parameters
    ----------
    id : str
        Its name, for ever.
    note : str
        Note and section: ``"000 §12"``; D is a diagram.
    says : str
        The claim, in our words.
    verdict : str
        One of `VERDICTS`.
    label : str
        How the note knows it: a label of `kvpager.evidence.Evidence`.
    stated : tuple of float
        What the note states, in `unit`; empty if it states no number.
    unit : str
        Unit of the stated and derived values; empty for a plain number.
    tolerance : tuple of float
        By which each value may be off; half a unit of the last printed digit, if nothing else is said.
    relation : str
        What is claimed of derived and stated: ``equal``, ``at least``, ``at most``, ``more than``.
    derive : tuple of mapping
        Recipes, see `kvpager.claims.derivation`.
    reading : str
        Where a claim about the text itself stands, if there is nothing to compute.
    reconstructed : str
        Which inputs were chosen to fit, where the note states a result without its inputs.
    remark : str
        What a reader needs to know besides.
    """

    id: str
    note: str
    says: str
    verdict: str
    label: str
    stated: tuple[float, ...] = ()
    unit: str = ""
    tolerance: tuple[float, ...] = ()
    relation: str = "equal"
    derive: tuple[Mapping[str, Any], ...] = ()
    reading: str = ""
    reconstructed: str = ""
    remark: str = ""

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each value; a recipe may have its own."""
        if len(self.derive) > 1:
            return tuple(recipe.get("unit", self.unit) for recipe in self.derive)
        return (self.unit,) * max(1, len(self.stated))

    def __post_init__(self) -> None:
        """Refuse data that the rest relies on being right."""
        Evidence.of(self.label)
        if self.verdict not in VERDICTS:
            raise InvariantError(f"claims ledger: {self.id} has the verdict {self.verdict!r}: use one of {', '.join(VERDICTS)}")


class Given(NamedTuple):
    """An input of derivations."""

    name: str
    value: Any
    """Number, text with a unit, or a list of those."""
    says: str
    source: str
    label: str
    reconstructed: bool = False
    """Whether it stands in neither note and was chosen so that the stated results come out."""


class Status(NamedTuple):
    """One entry of a claim's history."""

    claim: str
    date: str
    status: str
    """``audited``, ``withdrawn`` (by the notes' author) or ``demoted`` (by them, to an assumption)."""
    evidence: str
    """Label of what the entry rests on."""
    reason: str
    replacement: str
    """What to cite instead."""


def read(name: str) -> dict[str, Any]:
    """One file of the ledger, as TOML gives it."""
    return tomllib.loads((Path(__file__).parent / "ledger" / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def claims() -> dict[str, Claim]:
    """Every claim by its id, in the notes' order."""
    found: dict[str, Claim] = {}
    for topic in _TOPICS:
        for entry in read(topic)["claim"]:
            one = _claim(entry)
            if one.id in found:
                raise InvariantError(f"claims ledger: {one.id} stands in it twice")
            found[one.id] = one
    return found


def _claim(entry: Mapping[str, Any]) -> Claim:
    stated = tuple(float(value) for value in entry.get("stated", ()))
    tolerance = entry.get("tolerance", 0.0)
    each = tuple(tolerance) if isinstance(tolerance, list) else (float(tolerance),) * len(stated)
    rest = {key: value for key, value in entry.items() if key not in ("stated", "tolerance", "derive")}
    return Claim(**rest, stated=stated, tolerance=each, derive=tuple(entry.get("derive", ())))


@functools.cache
def givens() -> dict[str, Given]:
    """Every input of the derivations, by name."""
    return {entry["name"]: Given(**entry) for entry in read("givens")["given"]}


@functools.cache
def _history() -> tuple[Status, ...]:
    return tuple(Status(**entry) for entry in read("history")["status"])


def claim(id: str) -> Claim:
    """Look a claim up; raises `UnknownName` with the ids that come near."""
    known = claims()
    if id not in known:
        near = difflib.get_close_matches(id, known, n=4, cutoff=0.4) or [name for name in known if id and id in name][:4]
        hint = f"near: {', '.join(near)}" if near else "list them all with 'kvpager claims'"
        raise UnknownName(f"claim {id!r} is not in the ledger: {hint}")
    return known[id]


def history(id: str) -> tuple[Status, ...]:
    """What became of a claim, oldest entry first; an entry for ``*`` is about every claim."""
    return tuple(entry for entry in _history() if entry.claim in (id, "*"))


def status(id: str) -> str:
    """Latest status of a claim."""
    return history(id)[-1].status
