"""What a live run counted: where each access was served from, and what it read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import HBM, TIER_NAMES, Grant, Ids

__all__ = ["Counts"]


@dataclass
class Counts:
    """Sums over a run.

    Attributes
    ----------
    served : int64 [6]
        Accesses of steps by tier, `RECOMPUTE` and `FIRST_TOUCH` (law 1).
    units, hits : int
        Units asked for in steps, and those that were in HBM when their batch was judged.
    prefill : int64 [6]
        Units that prefills and cropping read again, by tier.
    late : int
        Units of both that a prefetch was fetching when they were asked for: misses, but not read a second time.
    recomputed_tokens : int
        Tokens prefilled again because a block was lost.
    mass_read, mass_probes : float, int
        Attention mass of what was read, summed over probes, and their number.
    """

    served: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, np.int64))
    units: int = 0
    hits: int = 0
    prefill: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, np.int64))
    late: int = 0
    recomputed_tokens: int = 0
    mass_read: float = 0.0
    mass_probes: int = 0

    def asked(self, grant: Grant, asks: Ids) -> None:
        """Count a step's demand."""
        units = np.bincount(grant.tier, minlength=6)
        several = int(asks.sum()) != len(asks)
        self.served += np.bincount(grant.tier, weights=asks, minlength=6).astype(np.int64) if several else units
        self.units += len(asks)
        self.hits += int(units[: HBM + 1].sum())
        self.late += len(grant.late)

    def streamed(self, grant: Grant) -> None:
        """Count what a prefill, or cropping into a sealed block, read again."""
        self.prefill += np.bincount(grant.tier, minlength=6)
        self.late += len(grant.late)

    @property
    def read_mass(self) -> float | None:
        """Share of the attention mass on what selective steps read, mean over the probes; None without one."""
        return self.mass_read / self.mass_probes if self.mass_probes else None

    @property
    def block_hit_ratio(self) -> float | None:
        """Accesses served by HBM over all accesses of steps; None before the first."""
        total = int(self.served.sum())
        return int(self.served[: HBM + 1].sum()) / total if total else None

    def per_tier(self) -> dict[str, Any]:
        """Return accesses of steps and units streamed by prefills, by the tier's name."""
        return {
            name: {"accesses": int(self.served[tier]), "prefill_units": int(self.prefill[tier])}
            for tier, name in TIER_NAMES.items()
        }
