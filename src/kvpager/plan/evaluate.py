"""One model, two ways to run it: with quantities that explain themselves, or on bare arrays for a sweep.

A planner function is written once against `Evaluator`: it names each step, its formula and its source, and hands over a
vectorised function. `Explained` turns every step into a `Quantity` with range, inputs and label; `Numbers` just computes.
So a sweep cannot disagree with the plan that it sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from kvpager.analysis.capacity import Values
from kvpager.evidence import Evidence, Quantity, derive

__all__ = ["Evaluator", "Explained", "Numbers", "as_json", "asked"]

T = TypeVar("T")


class Evaluator(Protocol[T]):
    """What planner functions compute with."""

    def given(self, quantity: Quantity) -> T:
        """Take an input from the catalogue, the model or the assumptions."""
        ...

    def step(self, name: str, unit: str, formula: str, function: Callable[..., Any], *inputs: T, source: str = "") -> T:
        """Compute one step; `function` is vectorised and monotone in each input."""
        ...


class Numbers:
    """Bare numbers and arrays; ranges are ignored."""

    def given(self, quantity: Quantity) -> Values:
        """Return the value."""
        return quantity.value

    def step(self, name: str, unit: str, formula: str, function: Callable[..., Any], *inputs: Values, source: str = "") -> Values:
        """Return what the function returns."""
        result: Values = function(*inputs)
        return result


class Explained:
    """Quantities: every step keeps its formula, inputs, label and range."""

    def given(self, quantity: Quantity) -> Quantity:
        """Return the quantity itself."""
        return quantity

    def step(
        self, name: str, unit: str, formula: str, function: Callable[..., Any], *inputs: Quantity, source: str = ""
    ) -> Quantity:
        """Evaluate at the values and, in one vectorised call, at every corner of the inputs' ranges."""
        value = float(function(*(part.value for part in inputs)))
        ranged = [part for part in inputs if part.is_range]
        if not ranged:
            return derive(name, value, unit, formula, inputs, source)
        axes = iter(np.meshgrid(*(part.ends for part in ranged), indexing="ij"))
        corners = np.asarray(function(*(next(axes) if part.is_range else part.value for part in inputs)), dtype=np.float64)
        low, high = min(value, float(corners.min())), max(value, float(corners.max()))
        return derive(name, value, unit, formula, inputs, source, low=low, high=high)


def asked(name: str, value: float, unit: str, low: float | None = None, high: float | None = None) -> Quantity:
    """Quantity that the user stated: it is the question, and exact unless a range was given."""
    return Quantity(value, unit, frozenset({Evidence.ANALYTICAL}), "", "as asked", name, low, high)


def as_json(document: Any) -> Any:
    """Turn a plan's quantities into JSON objects; infinite numbers become the word ``"never"``."""
    if isinstance(document, Quantity):
        return as_json(document.to_json())
    if isinstance(document, dict):
        return {key: as_json(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [as_json(value) for value in document]
    if isinstance(document, float) and not math.isfinite(document):
        return "never"
    return document
