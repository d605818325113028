"""W-TinyLFU: past frequencies decide who may enter the main cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import POLICIES
from kvpager.policies.serial import Serial
from kvpager.pool import Pools

__all__ = ["WTinyLfu"]

_WINDOW, _PROBATION, _PROTECTED = 1, 2, 3
_MOST = 15  # counters of four bits


@POLICIES.register("w-tinylfu")
@dataclass
class WTinyLfu(Serial):
    """Keep what leaves a small LRU window if it was asked for more often than what it would push out.

    Source: TinyLFU, Einziger, Friedman and Manes, ACM Trans. Storage 13(4), 2017 (W-TinyLFU: window, segmented LRU, counters
    that are halved after a sample of accesses). Differs in: a tick's batch is counted as a whole, then taken unit by unit in
    the order of a seeded hash; counters are exact, because units are few, where the paper has a sketch and a doorkeeper, and
    are halved for all pools together; creation counts as an access, and a pool's open units stand outside.

    Parameters
    ----------
    window, protected : float
        Share of the window, and of what is protected in the rest, in (0, 1).
    sample : int
        Accesses between halvings, in capacities.
    """

    window: float = 0.01
    protected: float = 0.8
    sample: int = 10

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.window < 1 or not 0 < self.protected < 1 or self.sample < 1:
            raise BadInput(
                f"w-tinylfu: window = {self.window}, protected = {self.protected}, sample = {self.sample}: "
                "give two shares in (0, 1) and 1 or more capacities"
            )

    def reset(self, table: UnitTable, seed: int) -> None:
        super().reset(table, seed)
        self._counts: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._seen = 0

    def set_pools(self, pools: Pools) -> None:
        super().set_pools(pools)
        self._sample = self.sample * int(pools.capacity.sum())

    def directory(self, room: int) -> _Segments:
        window = max(int(room * self.window), 1)
        return _Segments(self, room, window, int((room - window) * self.protected))

    def take(self, units: Ids) -> None:
        short = len(self.state) - len(self._counts)
        if short:
            self._counts = np.concatenate([self._counts, np.zeros(short, np.uint8)])
        self._counts[units] = np.minimum(self._counts[units] + 1, _MOST)
        self._seen += len(units)
        super().take(units)
        if len(units) and self._seen >= self._sample:
            self._counts >>= 1
            self._seen //= 2

    def frequency(self, unit: int) -> int:
        """How often a unit was asked for lately."""
        return int(self._counts[unit])

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return np.where(self.states(units) > 0, _MOST + 1.0, 0.0) + self._counts[units]


class _Segments:
    """Window, probation and protected of one pool, oldest first."""

    def __init__(self, policy: WTinyLfu, room: int, most_window: int, most_protected: int) -> None:
        self._policy, self._room = policy, room
        self._most_window, self._most_protected = most_window, most_protected
        self._at: dict[int, OrderedDict[int, None]] = {segment: OrderedDict() for segment in (_WINDOW, _PROBATION, _PROTECTED)}

    def touch(self, unit: int) -> None:
        was = self._policy.state[unit]
        if was in (_WINDOW, _PROTECTED):
            self._at[was].move_to_end(unit)
        elif was == _PROBATION:
            self._move(unit, _PROTECTED)
            if len(self._at[_PROTECTED]) > self._most_protected:
                self._move(next(iter(self._at[_PROTECTED])), _PROBATION)
        else:
            self._move(unit, _WINDOW)
            if len(self._at[_WINDOW]) > self._most_window:
                self._admit(next(iter(self._at[_WINDOW])))

    def forget(self, unit: int) -> None:
        self._move(unit, 0)

    def _move(self, unit: int, to: int) -> None:
        """Move a unit to the young end of a segment, or out."""
        if was := self._policy.state[unit]:
            del self._at[was][unit]
        self._policy.state[unit] = to
        if to:
            self._at[to][unit] = None

    def _admit(self, comes: int) -> None:
        """Let the oldest of the window into the main cache if it is asked for more often than whom it would push out."""
        if sum(map(len, self._at.values())) > self._room:
            rivals = self._at[_PROBATION] or self._at[_PROTECTED]
            goes = next(iter(rivals), comes)
            if self._policy.frequency(comes) <= self._policy.frequency(goes):
                self._move(comes, 0)
                return
            self._move(goes, 0)
        self._move(comes, _PROBATION)
