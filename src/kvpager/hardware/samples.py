"""Repeats of one measured rate, and the rule for a rate that cannot be true (law 7)."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvpager.errors import PhysicalBoundError
from kvpager.evidence import Quantity
from kvpager.units import format_quantity

__all__ = ["Samples", "bounded"]


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured of one thing.

    Parameters
    ----------
    what : str
        Name of the thing.
    size_bytes : int
        Bytes of one transfer.
    depth : int
        Transfers in flight at once.
    rates : tuple of float
        Bytes a second, one entry a repeat.
    operation_s : float
        Median time of one transfer, in seconds.
    limit : Quantity, optional
        Rate that the bus can carry; None = unknown.
    """

    what: str
    size_bytes: int
    depth: int
    rates: tuple[float, ...]
    operation_s: float
    limit: Quantity | None = None

    @property
    def median(self) -> float:
        """Median rate, bytes a second."""
        return statistics.median(self.rates)

    def value(self) -> dict[str, Any]:
        """As a value of a catalogue file: median, and the range of the repeats."""
        return {"value": _gb(self.median), "low": _gb(min(self.rates)), "high": _gb(max(self.rates)), "unit": "GB/s"}

    def row(self) -> dict[str, Any]:
        """As a row of a profile's ``measurements``."""
        return {
            "what": self.what,
            "size_bytes": self.size_bytes,
            "depth": self.depth,
            "median_gb_per_s": _gb(self.median),
            "low_gb_per_s": _gb(min(self.rates)),
            "high_gb_per_s": _gb(max(self.rates)),
            "operation_us": round(self.operation_s * 1e6, 2),
            "repeats": len(self.rates),
            "limit": "unknown" if self.limit is None else f"{self.limit.text()}, {self.limit.name}",
        }


def _gb(rate: float) -> float:
    """GB/s with four significant digits, never rounded down to zero."""
    return float(f"{rate / 1000**3:.4g}")


def bounded(measure: Callable[[], Samples]) -> Samples:
    """Measure; where the median exceeds its limit, measure once more in the same window, then refuse.

    Parameters
    ----------
    measure : callable
        Takes the samples.

    Returns
    -------
    Samples
        The first ones that are possible.

    Raises
    ------
    PhysicalBoundError
        If the second measurement exceeds the limit too.
    """
    for _ in range(2):
        samples = measure()
        if samples.limit is None or samples.median <= samples.limit.value:
            return samples
    limit = samples.limit if samples.limit is not None else Quantity(0.0, "B/s")
    raise PhysicalBoundError(
        f"{samples.what}: measured twice {format_quantity(samples.median, 'B/s')}, more than the "
        f"{format_quantity(limit.value, 'B/s')} of {limit.name}: something in between answers from a memory; "
        "measure another directory, or with a larger file"
    )
