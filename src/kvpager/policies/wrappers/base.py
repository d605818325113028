"""Delegation: a wrapper is a policy that passes everything on and changes the key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import Policy
from kvpager.pool import Pools

__all__ = ["Wrapper"]


class Wrapper(Policy):
    """Base of wrappers around one `policy`."""

    policy: Policy

    def __post_init__(self) -> None:
        """Take over what the wrapped policy declares."""
        self.needs = self.policy.needs  # type: ignore[misc]
        self.keep_bonus = self.policy.keep_bonus
        self.pinned_from = self.policy.pinned_from

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self.policy.reset(table, seed)

    def set_pools(self, pools: Pools) -> None:
        self.policy.set_pools(pools)

    def set_future(self, units: Ids, ticks: NDArray[np.int64], asks: Ids) -> None:
        self.policy.set_future(units, ticks, asks)

    def set_future_mass(self, mass: NDArray[np.float32]) -> None:
        self.policy.set_future_mass(mass)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self.policy.on_new(tick, units)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self.policy.on_access(tick, units, asks)

    def on_mass(self, seen: Seen) -> None:
        self.policy.on_mass(seen)

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        self.policy.on_gone(units, freed=freed)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self.policy.keep_key(tick, units)
