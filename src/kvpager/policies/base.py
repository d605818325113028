"""What a step-level policy is: it ranks units and never moves them.

The `Pager` calls the observers as things happen and asks `keep_key` when it must choose. Conventions
of the key: higher = keep; ``-inf`` = do not keep, even if there is room; `PIN` and above = keep before
everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.pool import Pools
from kvpager.registry import Registry

__all__ = ["CLAIRVOYANT", "PIN", "POLICIES", "Policy", "creation_step", "fill_new"]

PIN = 1e12
"""Keys from here on are pins."""

CLAIRVOYANT = frozenset({"unread_mass", "future", "future_mass"})
"""Needs that no live run can meet."""

POLICIES: Registry[Callable[..., Policy]] = Registry("policies", "kvpager.policies")


class Policy:
    """Base of step-level policies: observes everything, does nothing.

    A subclass is a dataclass whose fields are its configuration; run state is made in `reset`.
    The observers need only be overridden where the policy cares.

    Attributes
    ----------
    needs : frozenset of str
        What it must be given beyond accesses, out of ``"mass"`` (of read units), ``"unread_mass"``,
        ``"future"`` and ``"future_mass"``. A live run refuses the last three (law 11): see `CLAIRVOYANT`.
    keep_bonus : float
        Added by the Pager to the key of units that are resident already.
    pinned_from : float
        Residents with a key from here on stand in tier 0.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    keep_bonus: float = 0.0
    pinned_from: float = float("inf")

    def reset(self, table: UnitTable, seed: int) -> None:
        """Forget everything and serve `table` from now on."""
        raise NotImplementedError

    def set_pools(self, pools: Pools) -> None:
        """Learn who shares HBM, and how many units each pool holds; called once, after `reset`."""

    def set_future(self, units: Ids, ticks: NDArray[np.int64], asks: Ids) -> None:
        """Take the whole demand, in time order; called after `reset`, and only if `needs` holds ``"future"``.

        Parameters
        ----------
        units : int32 [accesses]
            Demanded units.
        ticks : int64 [accesses]
            Ascending serial number of each demand's tick.
        asks : int32 [accesses]
            How much each counts; 0 in the warm-up.
        """

    def set_future_mass(self, mass: NDArray[np.float32]) -> None:
        """Take the whole mass, float32 [steps, layer, kv_head, block]; called only if `needs` holds ``"future_mass"``."""

    def on_new(self, tick: Tick, units: Ids) -> None:
        """Units were created (by prefill or because a block was opened)."""

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        """Units were asked for; called once a tick, before anything is placed."""

    def on_mass(self, seen: Seen) -> None:
        """Attention mass of the units read in this tick; called once, before the last placement."""

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        """Units left HBM (``freed=False``) or ceased to exist."""

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        """Return the key of each unit, float64 [units], as a new array; higher = keep."""
        raise NotImplementedError


def fill_new(array: NDArray[np.float64], table: UnitTable, fill: float = 0.0) -> NDArray[np.float64]:
    """Return `array` grown, if need be, to every id of `table`; new entries hold `fill`."""
    if len(array) >= table.size:
        return array
    grown = np.full(max(table.size, 2 * len(array)), fill)
    grown[: len(array)] = array
    return grown


def creation_step(table: UnitTable, tick: Tick, units: Ids) -> NDArray[np.float64]:
    """Step at which each of `units` was created, float64 [units].

    Blocks that a prefill creates in one call were written in token order: a block that lies k blocks
    before the newest of its batch is taken as created k steps earlier.
    """
    first = table.first_token[units].astype(np.float64)
    age: NDArray[np.float64] = (first.max(initial=0) - first) / table.block_size
    return tick.step - age
