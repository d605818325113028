"""What the calls of a run came to: counted once by the run itself, and by the same code when it is replayed or predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from kvpager.core import DRAM, HBM, STAGE, TIER_NAMES, Grant, Move
from kvpager.traces.run import Event

__all__ = ["Counted", "RunCounts", "RunTally", "tier_counters"]


class Counted(Protocol):
    """A tier that counts units by the reason of their move."""

    read_units: dict[str, int]
    written_units: dict[str, int]


@dataclass
class RunCounts:
    """What a run's calls came to; the same for a run and for its prediction.

    Attributes
    ----------
    calls, steps, ticks : int
        Calls of table and driver; steps and ticks with a demand that was served.
    accesses, block_hits, early_hits : int
        (row, KV head) pairs that asked for a unit; those whose unit was in HBM; those hits that a prefetch is owed.
    unit_accesses, unit_hits, early_units, late_units : int
        The same, counting each unit of a demand once; units that were asked for while a prefetch was in flight.
    served, streamed : list of int
        Accesses by tier, `RECOMPUTE` and `FIRST_TOUCH` (law 1); units of a prefill's dense reading, by the same.
    loads, stream_loads, kept, evictions, demotions, dram_drops, backups, prefetched : int
        Units read for a demand or a stream; of these, for a stream; of loaded and admitted ones, kept; that left HBM for others;
        that went to tier 2; that left it; written to the backing store; read ahead.
    moves : int
        Moves of all kinds.
    read_mass, read_mass_in_hbm : float
        Attention mass of the units that were *read*, open ones included; of it, in HBM when the demand was judged. Nobody knows
        the mass of what a selective run did not read.
    """

    calls: int = 0
    steps: int = 0
    ticks: int = 0
    accesses: int = 0
    block_hits: int = 0
    early_hits: int = 0
    unit_accesses: int = 0
    unit_hits: int = 0
    early_units: int = 0
    late_units: int = 0
    served: list[int] = field(default_factory=lambda: [0] * len(TIER_NAMES))
    streamed: list[int] = field(default_factory=lambda: [0] * len(TIER_NAMES))
    loads: int = 0
    stream_loads: int = 0
    kept: int = 0
    evictions: int = 0
    demotions: int = 0
    dram_drops: int = 0
    backups: int = 0
    prefetched: int = 0
    moves: int = 0
    read_mass: float = 0.0
    read_mass_in_hbm: float = 0.0

    def document(self, tiers: Mapping[int, Counted], unit_bytes: int) -> dict[str, Any]:
        """Return all counts and the tiers' own, ready for JSON."""
        return asdict(self) | {"tiers": tier_counters(tiers, unit_bytes)}


class RunTally:
    """Counts calls as they are told: a sink.

    Attributes
    ----------
    counts : RunCounts
        So far.
    """

    def __init__(self) -> None:
        self.counts = RunCounts()
        self._steps: set[int] = set()

    def __call__(self, event: Event) -> None:
        """Count one call."""
        self.counts.calls += 1
        for move in event.moves:
            self._moved(move, len(move.units))
            self.counts.stream_loads += len(move.units) * (event.kind == "stream" and move.why == "demand")
        if event.grant is None:
            return
        if event.kind == "stream":
            found = np.bincount(event.grant.tier, minlength=len(TIER_NAMES))
            self.counts.streamed = [a + int(b) for a, b in zip(self.counts.streamed, found, strict=True)]
        else:
            self._asked(event, event.grant)

    def _asked(self, event: Event, grant: Grant) -> None:
        counts, weight, hit = self.counts, event.asks, grant.tier <= HBM
        self._steps.add(event.tick.step)
        counts.steps = len(self._steps)
        counts.ticks += 1
        counts.accesses += int(weight.sum())
        counts.block_hits += int(weight[hit].sum())
        counts.early_hits += int(weight[grant.early].sum())
        counts.unit_accesses += len(hit)
        counts.unit_hits += int(np.count_nonzero(hit))
        counts.early_units += int(np.count_nonzero(grant.early))
        counts.late_units += len(grant.late)
        served = np.bincount(grant.tier, weights=weight, minlength=len(TIER_NAMES))
        counts.served = [a + int(b) for a, b in zip(counts.served, served, strict=True)]
        if event.seen is not None and len(event.seen.units):
            mass = event.seen.mass.astype(np.float64)
            at_hand = ~np.isin(event.seen.units, event.units[~hit])  # what was not asked for is open or just written
            counts.read_mass += float(mass.sum())
            counts.read_mass_in_hbm += float(mass[at_hand].sum())

    def _moved(self, move: Move, units: int) -> None:
        counts = self.counts
        counts.moves += 1
        counts.loads += units * (move.why == "demand")
        counts.kept += units * (move.why == "keep")
        counts.evictions += units * (move.src == HBM and move.dst != STAGE and move.why in ("drop", "demote"))
        counts.demotions += units * (move.why == "demote")
        counts.dram_drops += units * (move.src == DRAM and move.why == "drop")
        counts.backups += units * (move.why == "backup")
        counts.prefetched += units * (move.why == "prefetch")


def tier_counters(tiers: Mapping[int, Counted], unit_bytes: int) -> dict[str, dict[str, dict[str, int]]]:
    """Return the tiers' own counters by tier, direction and reason, in units and bytes."""
    return {
        TIER_NAMES[number]: {
            name: {why: count * scale for why, count in sorted(counter.items()) if count}
            for name, counter, scale in (
                ("read_units", tier.read_units, 1),
                ("written_units", tier.written_units, 1),
                ("read_bytes", tier.read_units, unit_bytes),
                ("written_bytes", tier.written_units, unit_bytes),
            )
        }
        for number, tier in sorted(tiers.items())
    }
