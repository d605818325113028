"""S3-FIFO: a small queue on probation, a main queue, and ghosts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick
from kvpager.errors import BadInput
from kvpager.policies.base import POLICIES
from kvpager.policies.serial import Serial

__all__ = ["S3Fifo"]

_GHOST, _SMALL, _MAIN = 1, 2, 3
_MOST_HITS = 3


@POLICIES.register("s3-fifo")
@dataclass
class S3Fifo(Serial):
    """Keep what was asked for again while it stood in a small queue, or soon after it left it.

    Source: S3-FIFO, Yang et al., SOSP 2023, algorithm 1. Differs in: a tick's batch is taken unit by unit in the order of a
    seeded hash, creation counts as an access, and a pool's open units stand outside the queues.

    Parameters
    ----------
    small : float
        Share of the small queue, in (0, 1); as many ghosts as the main queue has room are remembered.
    threshold : int
        Hits in the small queue that take a unit to the main one.
    """

    small: float = 0.1
    threshold: int = 2

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.small < 1 or not 1 <= self.threshold <= _MOST_HITS:
            raise BadInput(
                f"s3-fifo: small = {self.small}, threshold = {self.threshold}: give a share in (0, 1) and 1 to {_MOST_HITS} hits"
            )

    def directory(self, room: int) -> _Queues:
        return _Queues(self.state, room, max(int(room * self.small), 1), self.threshold)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self.states(units).astype(np.float64)


class _Queues:
    """The three queues of one pool; hits of a unit by its id."""

    def __init__(self, state: bytearray, room: int, most_small: int, threshold: int) -> None:
        self._state, self._room, self._most_small, self._threshold = state, room, most_small, threshold
        self._small: OrderedDict[int, int] = OrderedDict()
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, int] = OrderedDict()

    def touch(self, unit: int) -> None:
        was = self._state[unit]
        if was >= _SMALL:
            queue = self._main if was == _MAIN else self._small
            queue[unit] = min(queue[unit] + 1, _MOST_HITS)
            return
        if was == _GHOST:
            del self._ghosts[unit]
        while len(self._small) + len(self._main) >= self._room:
            if len(self._small) >= self._most_small or not self._main:
                self._leave_small()
            else:
                self._leave_main()
        self._enter(unit, _MAIN if was == _GHOST else _SMALL)

    def forget(self, unit: int) -> None:
        for queue in (self._small, self._main, self._ghosts):
            queue.pop(unit, None)
        self._state[unit] = 0

    def _enter(self, unit: int, where: int) -> None:
        {_GHOST: self._ghosts, _SMALL: self._small, _MAIN: self._main}[where][unit] = 0
        self._state[unit] = where

    def _leave_small(self) -> None:
        """Make a ghost of the oldest that was not asked for enough; those passed go to the main queue."""
        while self._small:
            unit, hits = self._small.popitem(last=False)
            if hits < self._threshold:
                self._enter(unit, _GHOST)
                if len(self._ghosts) > self._room - self._most_small:
                    self._state[self._ghosts.popitem(last=False)[0]] = 0
                return
            self._enter(unit, _MAIN)

    def _leave_main(self) -> None:
        """Drop the oldest that has no hit left; each that is passed loses one and goes round again."""
        while True:
            unit, hits = self._main.popitem(last=False)
            if hits == 0:
                self._state[unit] = 0
                return
            self._main[unit] = hits - 1
