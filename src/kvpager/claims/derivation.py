"""Re-derive a claim: walk its recipe, call functions of `kvpager.analysis`, keep the steps for whoever asks.

A recipe (TOML) is ``{ by = "module.function", with = { argument = value, … } }`` where a value is

- a number, or text with a unit: ``0.2``, ``"140 GB"``, ``"50 ms"``;
- a reference ``"@name"`` to a given of ``givens.toml`` or to another claim's derived value;
- a list of those, or another recipe.

A recipe without ``by`` passes its one value on: two facts are compared. Values travel in base units (bytes,
seconds, dollars, shares); a claim's derived values are turned into the unit in which the note states them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kvpager.errors import BadInput, InvariantError
from kvpager.units import parse_bytes

__all__ = ["Path", "Reckoning", "Step", "number", "scale"]

Path = tuple[str | int, ...]
"""Where an input stands: a given's or claim's name, then recipe, argument, place in a list."""

_UNITS: dict[str, float] = {
    "%": 1e-2, "points": 1e-2, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9,
    "W": 1.0, "kW": 1e3, "$": 1.0, "FLOP": 1.0, "TFLOP": 1e12, "PFLOP": 1e15, "GT": 1e9, "rad": 1.0,
    "G parameters": 1e9,
}  # fmt: skip
_COUNTS = {
    "", "x", "1", "tokens", "positions", "users", "heads", "layers", "parts", "constants", "pairs", "steps", "position", "bits",
    "KV head", "query heads", "attention mass", "E", "P", "log10", "endpoints", "GPUs", "lanes", "GPU", "user", "relative",
    "step", "head", "token", "parameters", "orders", "year", "kWh",
}  # fmt: skip


@functools.cache
def scale(unit: str) -> float:
    """How many base units one `unit` is: ``scale("GB/s") == 1e9``; raises `InvariantError` for an unknown unit."""
    over, _, under = unit.partition("/")
    return _one(over.strip()) / (_one(under.strip()) if under else 1.0)


def _one(unit: str) -> float:
    if unit in _UNITS:
        return _UNITS[unit]
    if unit in _COUNTS:
        return 1.0
    try:
        return float(parse_bytes(f"1{unit}"))
    except BadInput:
        raise InvariantError(f"claims ledger: unit {unit!r} is not known; add it to claims/derivation.py") from None


def number(text: str | float) -> float:
    """Read a number, alone or with a unit, in base units: ``number("140 GB") == 1.4e11``."""
    if isinstance(text, str):
        digits, _, unit = text.partition(" ")
        return float(digits.replace(",", "")) * scale(unit)
    return float(text)


class Step(NamedTuple):
    """One call on the way to a derived value."""

    function: str
    inputs: dict[str, str]
    """Argument → its value as printed."""
    values: tuple[float, ...]
    claim: str
    """The claim whose recipe it belongs to."""


class Reckoning:
    """Derives values, and remembers what it read and what it did.

    Parameters
    ----------
    recipes : mapping of str to sequence
        Claim id → its recipes.
    givens : mapping of str to value
        Name → a number, text with a unit, or a list of those.
    units : mapping of str to str
        Claim id → unit of its values, if a recipe names no other.
    nudge : callable, optional
        Path and input → the input to use instead. For tests and for what-if questions.
    """

    def __init__(
        self,
        recipes: Mapping[str, Sequence[Mapping[str, Any]]],
        givens: Mapping[str, Any],
        units: Mapping[str, str],
        nudge: Callable[[Path, float], float] | None = None,
    ) -> None:
        self._recipes, self._givens, self._units, self._nudge = recipes, givens, units, nudge
        self.inputs: dict[Path, float] = {}
        self.used: dict[str, None] = {}  # givens and claims referred to, in the order met
        self.steps: list[Step] = []
        self._asked: list[str] = []
        self._known: dict[str, Any] = {}

    def derive(self, claim: str) -> tuple[float, ...]:
        """Values of a claim, in the unit in which it is stated."""
        values: list[float] = []
        for place, recipe in enumerate(self._recipes[claim]):
            found = np.atleast_1d(self._recipe(recipe, (claim, place), claim))
            values += (found.ravel() / scale(recipe.get("unit", self._units[claim]))).tolist()
        return tuple(values)

    def _recipe(self, recipe: Mapping[str, Any], path: Path, claim: str) -> Any:
        if "by" not in recipe:
            return self._value(recipe["value"], (*path, "value"), claim)
        arguments = {name: self._value(raw, (*path, name), claim) for name, raw in recipe["with"].items()}
        result = _function(recipe["by"])(**arguments)
        shown = {name: _shown(raw, arguments[name]) for name, raw in recipe["with"].items()}
        step = Step(recipe["by"], shown, tuple(np.atleast_1d(result).ravel().tolist()), claim)
        if step not in self.steps:
            self.steps.append(step)
        return result

    def _value(self, raw: Any, path: Path, claim: str) -> Any:
        if isinstance(raw, Mapping):
            return self._recipe(raw, path, claim)
        if isinstance(raw, list):
            return np.asarray([self._value(part, (*path, place), claim) for place, part in enumerate(raw)])
        if isinstance(raw, str) and raw.startswith("@"):
            return self._reference(raw[1:])
        self.inputs[path] = number(raw)
        return self._nudge(path, self.inputs[path]) if self._nudge else self.inputs[path]

    def _reference(self, name: str) -> Any:
        self.used[name] = None
        if name in self._known:
            return self._known[name]
        if name in self._asked:
            raise InvariantError(f"claims ledger: {' → '.join([*self._asked, name])} goes in a circle")
        self._asked.append(name)
        if name in self._givens:
            self._known[name] = self._value(self._givens[name], (name,), "")
        elif name in self._recipes:
            found = [self._recipe(recipe, (name, place), name) for place, recipe in enumerate(self._recipes[name])]
            self._known[name] = found[0] if len(found) == 1 else np.asarray(found)
        else:
            raise InvariantError(f"claims ledger: @{name} is neither a given nor a claim")
        self._asked.pop()
        return self._known[name]


@functools.cache
def _function(dotted: str) -> Callable[..., Any]:
    module, _, name = dotted.partition(".")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(f"kvpager.analysis.{module}"), name)
    except (ImportError, AttributeError):
        raise InvariantError(f"claims ledger: kvpager.analysis has no {dotted}") from None
    return found


def _shown(raw: Any, value: Any) -> str:
    """An argument as the reader sees it: text as written, what was computed as a number."""
    if isinstance(raw, list):
        return f"[{', '.join(_shown(part, one) for part, one in zip(raw, value, strict=True))}]"
    figures = ", ".join(f"{figure:.6g}" for figure in np.atleast_1d(value).ravel().tolist())
    if isinstance(raw, str) and raw.startswith("@"):
        return f"{raw[1:]} = {figures}"
    return raw if isinstance(raw, str) else figures
