"""Who shares HBM, and the one exact choice that all placement comes down to: the best n by key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, Ids, Tick, UnitTable
from kvpager.errors import BadInput, CapacityError

__all__ = ["POOLS", "Pools", "best", "tie_hash"]

POOLS = ("global", "layer", "equal")


def tie_hash(units: Ids, seed: int, step: int) -> NDArray[np.uint64]:
    """Order units at random, the same way for the same (seed, unit, step): splitmix64, uint64 [units]."""
    mask = (1 << 64) - 1
    with np.errstate(over="ignore"):
        x = units.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03) & mask)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def best(keys: NDArray[np.float64], units: Ids, count: int, seed: int, step: int) -> NDArray[np.bool_]:
    """Mark the `count` units of highest key; ties by `tie_hash`, ``-inf`` never.

    Parameters
    ----------
    keys : float64 [n]
        Higher = keep; no NaN.
    units : int32 [n]
        Unique ids, for the ties.
    count : int
        How many may stay, >= 0.
    seed, step : int
        Seed of the ties.

    Returns
    -------
    bool [n]
    """
    n = len(keys)
    if n <= count:
        wanted: NDArray[np.bool_] = keys > -np.inf
        return wanted
    if count <= 0:
        return np.zeros(n, np.bool_)
    cut = np.partition(keys, n - count)[n - count]
    stay: NDArray[np.bool_] = keys > cut
    open_places = count - int(np.count_nonzero(stay))
    if cut > -np.inf and open_places:
        tied = np.flatnonzero(keys == cut)
        if len(tied) > open_places:
            order = tie_hash(units[tied], seed, step)
            tied = tied[order < np.partition(order, open_places)[open_places]]
        stay[tied] = True
    return stay


class Pools:
    """The partition of HBM.

    Parameters
    ----------
    table : UnitTable
        Units.
    kind : {"global", "layer", "equal"}
        One pool; one a layer; one a layer and KV head.
    total_units : int
        Units that HBM holds in all; equal shares are rounded down.

    Attributes
    ----------
    capacity, used : int64 [pools]
        Units.
    """

    def __init__(self, table: UnitTable, kind: str, total_units: int) -> None:
        counts = {"global": 1, "layer": table.num_layers, "equal": table.units_per_block}
        if kind not in counts:
            raise BadInput(f"unknown pool {kind!r}: choose among {', '.join(POOLS)}")
        self.kind, self._table = kind, table
        share = total_units // counts[kind]
        if share < 1:
            raise CapacityError(
                f"{total_units} units of HBM over {counts[kind]} {kind} pool(s) leave none with room for one unit: "
                f"give at least {counts[kind]} units"
            )
        self.capacity = np.full(counts[kind], share, np.int64)
        self.used = np.zeros(counts[kind], np.int64)
        self._of = np.empty(0, np.intp)

    def grow(self) -> None:
        """Learn the pools of units created since."""
        table, old = self._table, len(self._of)
        ids = np.arange(old, table.size)
        if self.kind == "global":
            new = np.zeros(len(ids), np.intp)
        elif self.kind == "layer":
            new = table.layer[ids].astype(np.intp)
        else:
            new = ids % table.units_per_block
        self._of = np.concatenate([self._of, new])

    def of(self, units: Ids) -> NDArray[np.intp]:
        """Pool number of each unit."""
        return self._of[units]

    def add(self, units: Ids, sign: int) -> None:
        """Count `units` in (+1) or out (-1)."""
        if len(units):
            self.used += sign * self.count(units)

    def count(self, units: Ids) -> NDArray[np.int64]:
        """Number of `units` by pool, int64 [pools]."""
        if self.kind == "global":
            return np.array([len(units)], np.int64)
        return np.bincount(self._of[units], minlength=len(self.used))

    def scope(self, layer: int) -> Ids | None:
        """Units of the pools that a tick of `layer` touches; None = all units."""
        return None if self.kind == "global" or layer == ALL_LAYERS else self._table.of_layer(layer)

    def admissible(self, units: Ids, room: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mark, pool by pool, the first `room` of `units`, bool [units]."""
        pools = self.of(units)
        rank = np.zeros(len(units), np.int64)
        for pool in np.unique(pools):
            mine = pools == pool
            rank[mine] = np.arange(np.count_nonzero(mine))
        return rank < room[pools]

    def keep(self, units: Ids, keys: NDArray[np.float64], room: NDArray[np.int64], seed: int, tick: Tick) -> NDArray[np.bool_]:
        """Mark, pool by pool, the best `room` units by key.

        Parameters
        ----------
        units : int32 [n]
            Candidates.
        keys : float64 [n]
            Their keys.
        room : int64 [pools]
            How many each pool may keep.
        seed : int
            Seed of the ties.
        tick : Tick
            Now.

        Returns
        -------
        bool [n]
        """
        if self.kind == "global":
            return best(keys, units, int(room[0]), seed, tick.step)
        pools = self.of(units)
        stay = np.zeros(len(units), np.bool_)
        for pool in np.flatnonzero(np.bincount(pools)):
            mine = np.flatnonzero(pools == pool)
            stay[mine] = best(keys[mine], units[mine], int(room[pool]), seed, tick.step)
        return stay
