"""How a number is known, and the rule that labels never improve (law 9).

A result carries the union of its inputs' labels and of its method's label. Its `evidence` is the
weakest label present. Nothing is promoted: a simulation fed with an assumption stays an assumption.

Uncertainty travels the same way: a result of inputs that have ranges has a range (`propagate`), and a
point value that would hide one is refused (`derive`). `Quantity.explain` prints the whole chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kvpager.errors import BadInput, InvariantError
from kvpager.units import format_quantity

__all__ = ["Evidence", "Quantity", "combine", "derive", "explain", "propagate", "weakest"]


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
        if label not in _OF_LABEL:
            raise BadInput(f"evidence label {label!r} is unknown: use one of {', '.join(_OF_LABEL)}")
        return _OF_LABEL[label]


_OF_LABEL = {evidence.label: evidence for evidence in Evidence}


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
    name : str
        What it is called in formulas, with its unit as suffix where it has one, e.g. ``"weights_bytes"``.
    low, high : float, optional
        The range that is known to hold the value; both or neither.
    inputs : tuple of Quantity
        What it was computed from.

    Raises
    ------
    BadInput
        If only one end of the range is given, or the value lies outside it.
    """

    value: float
    unit: str
    labels: frozenset[Evidence] = field(default_factory=frozenset)
    formula: str = ""
    source: str = ""
    name: str = ""
    low: float | None = None
    high: float | None = None
    inputs: tuple[Quantity, ...] = ()

    def __post_init__(self) -> None:
        """Refuse half a range, and a range that does not hold the value."""
        what = self.name or self.formula or "a quantity"
        if (self.low is None) != (self.high is None):
            raise BadInput(f"{what}: a range needs both ends, got low={self.low} and high={self.high}: give both or neither")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise BadInput(
                f"{what}: {self.value} {self.unit} lies outside its range {self.low} to {self.high}: correct one of them"
            )

    @property
    def evidence(self) -> Evidence:
        """The weakest label present."""
        return weakest(self.labels)

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high end; the value twice where there is no range."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    @property
    def is_range(self) -> bool:
        """Whether the two ends differ."""
        low, high = self.ends
        return low != high

    def text(self) -> str:
        """Value, unit and range as they are printed: ``"17.5 ms (16.9 ms to 18.2 ms)"``."""
        shown = format_quantity(self.value, self.unit)
        if self.is_range:
            shown += " ({} to {})".format(*(format_quantity(end, self.unit) for end in self.ends))
        return shown

    def explain(self) -> list[str]:
        """Return the derivation, one line a step: the result first, its inputs indented below it.

        An input that was explained further up is named again, marked ``(above)``, without formula and inputs.
        """
        return explain(self)

    def _explain(self, indent: str, seen: set[tuple[Any, ...]]) -> Iterator[str]:
        step = (self.name, self.text(), self.formula, self.source)
        if step in seen:
            yield f"{indent}{self.name or 'value'} = {self.text()} (above)"
            return
        seen.add(step)
        formula = f" = {self.formula}" if self.formula else ""
        source = f"; {self.source}" if self.source else ""
        yield f"{indent}{self.name or 'value'} = {self.text()}{formula}  [{self.evidence.label}{source}]"
        for part in self.inputs:
            yield from part._explain(indent + "  ", seen)

    def _head(self) -> dict[str, Any]:
        """Value, unit, evidence and, if there is one, the range."""
        doc: dict[str, Any] = {"value": self.value, "unit": self.unit, "evidence": self.evidence.label}
        if self.low is not None:
            doc |= {"low": self.low, "high": self.high}
        return doc

    def to_json(self) -> dict[str, Any]:
        """Return the object form of the JSON contract: value, unit, evidence and, if set, the rest; inputs by name."""
        doc = self._head()
        if self.name:
            doc["name"] = self.name
        if len(self.labels) > 1:
            doc["labels"] = [label.label for label in sorted(self.labels)]
        if self.formula:
            doc["formula"] = self.formula
        if self.source:
            doc["source"] = self.source
        if self.inputs:
            doc["inputs"] = {part.name or part.formula or str(i): part._head() for i, part in enumerate(self.inputs)}
        return doc


def derive(
    name: str,
    value: float,
    unit: str,
    formula: str,
    inputs: Sequence[Quantity],
    source: str = "",
    method: Evidence = Evidence.ANALYTICAL,
    low: float | None = None,
    high: float | None = None,
) -> Quantity:
    """Make a quantity that was computed from others; its labels are theirs and the method's (law 9).

    Parameters
    ----------
    name : str
        As in `Quantity`.
    value : float
        The computed number.
    unit, formula : str
        As in `Quantity`.
    inputs : sequence of Quantity
        What it was computed from.
    source : str
        Where the formula comes from.
    method : Evidence
        How it was computed.
    low, high : float, optional
        Range of the result. Needed where an input has one; `propagate` computes it.

    Returns
    -------
    Quantity
        The result.

    Raises
    ------
    InvariantError
        If an input has a range and none is given: a point would hide it.
    """
    if low is None and high is None:
        hidden = [part.name or part.formula for part in inputs if part.is_range]
        if hidden:
            raise InvariantError(
                f"{name} is computed from {', '.join(hidden)}, which has a range, and would be printed as a point: "
                "give low and high, or compute it with evidence.propagate"
            )
    return Quantity(
        value, unit, combine(*(part.labels for part in inputs), [method]), formula, source, name, low, high, tuple(inputs)
    )


def propagate(
    name: str,
    unit: str,
    formula: str,
    function: Callable[..., float],
    inputs: Sequence[Quantity],
    source: str = "",
    method: Evidence = Evidence.ANALYTICAL,
) -> Quantity:
    """Compute a quantity from others and carry their ranges along.

    The function is evaluated at the inputs' values and at every corner of their ranges. For a function that is
    monotone in each input by itself, as the planner's are, the extremes of the corners are the exact interval over
    independent inputs. An input that enters twice, by two derivations, is treated as independent: the interval can
    only be too wide, never too narrow (interval arithmetic: Moore, Interval Analysis, 1966, chapter 3).

    Parameters
    ----------
    name, unit, formula : str
        As in `Quantity`.
    function : callable
        Takes the inputs' numbers in order; returns the result.
    inputs : sequence of Quantity
        Its arguments.
    source : str
        Where the formula comes from.
    method : Evidence
        How it is computed.

    Returns
    -------
    Quantity
        With `low` and `high` if any input is a range.
    """
    value = float(function(*(part.value for part in inputs)))
    if not any(part.is_range for part in inputs):
        return derive(name, value, unit, formula, inputs, source, method)
    corners = itertools.product(*(dict.fromkeys((part.low, part.high)) if part.is_range else (part.value,) for part in inputs))
    results = [float(function(*corner)) for corner in corners]
    return derive(name, value, unit, formula, inputs, source, method, min(value, *results), max(value, *results))


def explain(*quantities: Quantity) -> list[str]:
    """Return the derivations of several quantities, each step once: see `Quantity.explain`."""
    seen: set[tuple[Any, ...]] = set()
    return [line for quantity in quantities for line in quantity._explain("", seen)]
