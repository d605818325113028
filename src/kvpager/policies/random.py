"""Random replacement: the reference that any policy must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy
from kvpager.pool import tie_hash

__all__ = ["Random"]


@POLICIES.register("random")
@dataclass
class Random(Policy):
    """Keep a random subset, drawn anew at each tick from a seeded hash.

    Source: the textbook reference. Differs in: what was just read may be passed by.
    """

    def reset(self, table: UnitTable, seed: int) -> None:
        self._seed, self._layers = seed + 1, table.num_layers

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        serial = tick.step * self._layers + tick.layer
        return (tie_hash(units, self._seed, serial) >> np.uint64(11)).astype(np.float64) * 2.0**-53
