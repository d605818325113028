"""The register of uncalibrated constants: what a result took over from the notes without anyone having fitted it.

Whoever prints a result that uses one prints its lines too: ``printed("policy ema", "prefetcher blend")``.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

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
    calibrated_by: str
    """The run that fitted it; empty: none has."""
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

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; `calibrated_by` is null as long as no run has fitted the constant."""
        return self._asdict() | {"default": self.value, "calibrated_by": self.calibrated_by or None, "used_by": [*self.used_by]}


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
    by = {one: f"calibrated by {one.calibrated_by}" if one.calibrated_by else "uncalibrated" for one in used(*names)}
    return [f"{one.symbol} = {one.text}: {one.controls} ({how})" for one, how in by.items()]
