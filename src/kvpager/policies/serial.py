"""Textbook policies that take one access at a time: each pool has a directory, and what stands in it ranks first.

A tick asks for a batch, and the pager keeps the best of resident and staged. A directory takes the batch unit by unit, in
the order of a seeded hash. It never holds more than its pool has room for, nor what was neither held nor asked for just now:
so the pager keeps exactly what the textbook would. Open units stand in HBM in any case, outside the directory, and enter it
when they are sealed; they count as one block a pool.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import Policy
from kvpager.pool import Pools, tie_hash

__all__ = ["Directory", "Serial"]


class Directory(Protocol):
    """What one pool would hold under a textbook policy; it notes a unit's state in `Serial.state`, 0 = unknown."""

    def touch(self, unit: int) -> None:
        """Count an access, and take the unit in if need be."""

    def forget(self, unit: int) -> None:
        """Drop a unit that ceased to exist and is known here."""


class Serial(Policy):
    """Base of such policies.

    Attributes
    ----------
    state : bytearray
        One byte a unit, written by the directories.
    """

    def directory(self, room: int) -> Directory:
        """Return an empty directory of `room` units, >= 1."""
        raise NotImplementedError

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table, self._seed = table, seed
        self.state = bytearray()
        self._open: Ids = np.empty(0, np.int32)

    def set_pools(self, pools: Pools) -> None:
        open_units = self._table.units_per_block // len(pools.capacity)
        self._pools = pools
        self._directories = [self.directory(max(int(room) - open_units, 1)) for room in pools.capacity]

    def on_new(self, tick: Tick, units: Ids) -> None:
        self.state.extend(bytes(self._table.size - len(self.state)))
        sealed = self._table.sealed[units]
        self._open = np.concatenate([self._open, units[~sealed]])
        self.take(units[sealed])

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        full = self._table.sealed[self._open]
        if full.any():
            turned, self._open = self._open[full], self._open[~full]
            self.take(turned)
        self.take(units[np.argsort(tie_hash(units, self._seed, tick.step))])

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        if freed:
            self._open = self._open[~np.isin(self._open, units)]
            for unit, pool in zip(units.tolist(), self._pools.of(units).tolist(), strict=True):
                if self.state[unit]:
                    self._directories[pool].forget(unit)

    def take(self, units: Ids) -> None:
        """Let the directories take in `units`, one after the other."""
        if len(units):
            for unit, pool in zip(units.tolist(), self._pools.of(units).tolist(), strict=True):
                self._directories[pool].touch(unit)

    def states(self, units: Ids) -> NDArray[np.uint8]:
        """States of `units`, uint8 [units]."""
        return np.frombuffer(bytes(self.state), np.uint8)[units]
