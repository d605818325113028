"""The clairvoyant choice by rate: what will be asked for most often soon, in whatever order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy

__all__ = ["FutureRate"]


@POLICIES.register("future-rate")
@dataclass
class FutureRate(Policy):
    """Keep the units that will be asked for most often in the next ticks, knowing how often but not when.

    Source: kvpager's own; what a policy lacks to it, better estimates of rates could give, and what it lacks to `belady`, only
    the order of accesses. Differs in: foresight of some ticks, so it is an oracle, not a bound. Among equals, residents stay.

    Parameters
    ----------
    ticks : int
        How far it sees: one a layer and step, or one a step, as the clock has it.
    keep_bonus : float
        Added to the rate of residents; below 1 it only parts equals.
    """

    ticks: int = 480
    keep_bonus: float = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"future"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._asked = np.empty(0, np.int64)  # unit and tick of each demand in one number, ascending
        self._span = 1
        self._next = 0

    def set_future(self, units: Ids, ticks: NDArray[np.int64], asks: Ids) -> None:
        self._span = int(ticks.max(initial=0)) + self.ticks + 2
        self._asked = np.sort(units * np.int64(self._span) + ticks)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._next += 1

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        first = units * np.int64(self._span) + self._next
        return (np.searchsorted(self._asked, first + self.ticks) - np.searchsorted(self._asked, first)).astype(np.float64)
