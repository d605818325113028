"""A fixed share for each head, measured once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import PIN, Policy
from kvpager.policies.wrappers.base import Wrapper
from kvpager.pool import Pools, tie_hash

__all__ = ["Split"]


@dataclass
class Split(Wrapper):
    """After `steps` steps, give each KV head of each layer its own arena, as large as its share of what was asked for till then.

    Source: kvpager's own: what an engine with fixed arenas can do. Differs from a pool a head in: the size of the arenas; open
    units are extra, one a head; until the arenas are cut, the pool is shared. A pin stays, whatever its arena holds.

    Parameters
    ----------
    policy : Policy
        Ranks the units of a head; its keep bonus has no say between them.
    steps : int
        Decode steps that are measured, > 0.
    """

    policy: Policy
    steps: int = 16

    def __post_init__(self) -> None:
        """Check the number of steps."""
        super().__post_init__()
        if self.steps < 1:
            raise BadInput(f"a split after {self.steps} steps has measured nothing: give 1 or more, such as split:16")

    def reset(self, table: UnitTable, seed: int) -> None:
        super().reset(table, seed)
        self._seed = seed
        self._asked = np.zeros(table.units_per_block, np.int64)
        self._arenas: NDArray[np.int64] | None = None

    def set_pools(self, pools: Pools) -> None:
        super().set_pools(pools)
        if pools.kind != "global":
            raise BadInput(f"a split is cut out of one global pool, but the pool is {pools.kind!r}: choose global, or no split")
        self._room = max(int(pools.capacity[0]) - self._table.units_per_block, 0)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        super().on_access(tick, units, asks)
        if tick.step < self.steps:
            self._asked += np.bincount(units % self._table.units_per_block, minlength=len(self._asked))
        elif self._arenas is None:
            self._arenas = _shares(self._asked, self._room)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        keys = self.policy.keep_key(tick, units)
        if self._arenas is None:
            return keys
        heads = units % self._table.units_per_block
        full = np.bincount(heads, minlength=len(self._arenas)) > self._arenas
        rivals = np.flatnonzero(full[heads] & (keys < PIN / 8))  # elsewhere there is room for all
        rivals = rivals[np.lexsort((tie_hash(units[rivals], self._seed, tick.step), -keys[rivals], heads[rivals]))]
        first = np.searchsorted(heads[rivals], heads[rivals])
        pins = np.bincount(heads[keys >= PIN / 8], minlength=len(self._arenas))
        rank = np.arange(len(rivals)) - first + pins[heads[rivals]]
        keys[rivals[rank >= self._arenas[heads[rivals]]]] = -np.inf
        return keys


def _shares(asked: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Cut `room` units in proportion to what was asked for, largest remainders first; sums to `room`."""
    exact = room * asked / asked.sum() if asked.any() else np.full(len(asked), room / len(asked))
    shares: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    shares[np.argsort(shares - exact, kind="stable")[: room - int(shares.sum())]] += 1
    return shares
