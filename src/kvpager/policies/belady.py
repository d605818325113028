"""Belady's clairvoyant choice, with bypass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.errors import InvariantError
from kvpager.policies.base import POLICIES, Policy

__all__ = ["Belady"]

_NEVER = np.iinfo(np.int64).max // 4


@POLICIES.register("belady")
@dataclass
class Belady(Policy):
    """Keep the units whose next counted use is nearest: the most unit hits that any policy can have.

    Source: Belady, IBM Systems Journal 5(2), 1966; optimal with bypass by the exchange argument for
    interval scheduling. Differs in: uses in the warm-up count nothing, so the bound holds for exactly
    the steps that are measured. Units of one size; unit hits, not access hits.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"future"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._next = np.full(table.size, _NEVER)
        self._first = np.empty(0, np.int64)
        self._cursor = 0

    def set_future(self, units: Ids, ticks: NDArray[np.int64], asks: Ids) -> None:
        self._units = units
        size = int(units.max(initial=-1)) + 1
        order = np.lexsort((ticks, units))
        unit, tick, n = units[order], ticks[order], len(order)
        # in (unit, time) order, the first counted access at or after i is the nearest counted position, if it is the same unit's
        counted = np.where(asks[order] > 0, np.arange(n), n)
        nearest = np.append(np.minimum.accumulate(counted[::-1])[::-1], n)
        tick, unit = np.append(tick, _NEVER), np.append(unit, -1)
        use = np.where(unit[nearest[:n]] == unit[:n], tick[nearest[:n]], _NEVER)
        later = np.where(unit[nearest[1:]] == unit[:n], tick[nearest[1:]], _NEVER)
        self._after = np.empty(n, np.int64)
        self._after[order] = later
        self._first = np.full(size, _NEVER)
        begins = np.flatnonzero(np.diff(unit[:n], prepend=-1))
        self._first[unit[begins]] = use[begins]

    def on_new(self, tick: Tick, units: Ids) -> None:
        have = len(self._next)
        if units.max(initial=-1) >= have:
            self._next = np.concatenate([self._next, np.full(int(units.max()) + 1 - have, _NEVER)])
        known = units[units < len(self._first)]
        self._next[known] = self._first[known]

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        span = slice(self._cursor, self._cursor + len(units))
        if not np.array_equal(self._units[span], units):
            raise InvariantError(f"at {tick} the demand differs from the future that belady was given: it needs a fixed demand")
        self._next[units] = self._after[span]
        self._cursor += len(units)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return -self._next[units].astype(np.float64)
