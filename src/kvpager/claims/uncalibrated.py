"""The register of the constants that the notes set without calibration, and what experiments fitted instead.

A fit changes no default: the policies of the notes keep the notes' values, and every result says so. Whoever prints a result
that uses one prints its lines too: ``printed("policy ema", "prefetcher blend")``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from kvpager.claims.findings import constants
from kvpager.claims.ledger import givens, read

__all__ = ["Constant", "printed", "register", "used"]


class Constant(NamedTuple):
    """One constant that the notes set without calibration."""

    symbol: str
    default: str
    """The given that holds the notes' value."""
    claim: str
    """The claim that the value belongs to."""
    controls: str
    direction: str
    """What a larger value does."""
    used_by: tuple[str, ...]
    """Plug-ins (``policy ema``) and commands (``plan``) whose results rest on it."""

    @property
    def value(self) -> Any:
        """The notes' value: number, text with a unit, or a list of those."""
        return givens()[self.default].value

    @property
    def text(self) -> str:
        """The value as printed."""
        value = self.value
        return " / ".join(str(part) for part in value) if isinstance(value, list) else str(value)

    @property
    def fitted(self) -> Mapping[str, Any] | None:
        """What an experiment fitted it to, see `kvpager.claims.findings.constants`; None: none has."""
        return constants().get(self.symbol)

    @property
    def calibrated_by(self) -> str:
        """The experiment that fitted it, e.g. ``"E7"``; empty: none has."""
        return self.fitted["experiment"] if self.fitted else ""

    @property
    def fitted_text(self) -> str:
        """The fit as printed, ``"E7: 0.3 (0.2 to 0.3), within a point 0.05 to 0.5"``; empty if there is none."""
        if self.fitted is None:
            return ""
        numbers = zip(self.fitted["value"], self.fitted["low"], self.fitted["high"], strict=True)
        values = " / ".join(f"{value:.3g} ({low:.3g} to {high:.3g})" for value, low, high in numbers)
        close = " / ".join(f"{low:.3g} to {high:.3g}" for low, high in self.fitted["within_1_point"])
        return f"{self.calibrated_by}: {values}" + (f", within a point {close}" if close else "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; `calibrated_by` is null, and `fitted` absent, as long as no run has fitted the constant."""
        known = {"default": self.value, "calibrated_by": self.calibrated_by or None, "used_by": [*self.used_by]}
        return self._asdict() | known | ({"fitted": self.fitted} if self.fitted else {})


@functools.cache
def register() -> tuple[Constant, ...]:
    """Every constant of the register."""
    entries = read("uncalibrated")["constant"]
    return tuple(Constant(**entry | {"used_by": tuple(entry["used_by"])}) for entry in entries)


def used(*names: str) -> tuple[Constant, ...]:
    """The constants that results of these plug-ins or commands rest on, e.g. ``used("policy ema")``."""
    return tuple(constant for constant in register() if set(names) & {*constant.used_by})


def printed(*names: str) -> list[str]:
    """Short lines for a reader: each constant that these plug-ins or commands use, its value and who calibrated it."""
    by = {one: f"the notes' value; fitted by {one.fitted_text}" if one.fitted else "uncalibrated" for one in used(*names)}
    return [f"{one.symbol} = {one.text}: {one.controls} ({how})" for one, how in by.items()]
