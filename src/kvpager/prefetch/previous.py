"""Fetch what was read one step ago."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import fill_new
from kvpager.pool import tie_hash
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["PreviousStep"]


@PREFETCHERS.register("previous")
@dataclass
class PreviousStep(Prefetcher):
    """Fetch the units that were asked for most recently and are not resident; ties by a seeded hash.

    Source: reuse of the last step's selection, FreeKV, arXiv 2505.13109. Differs in: it fills a byte
    budget instead of speculating on the whole selection.
    """

    when: str = "layer"

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table, self._seed = table, seed
        self._last: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._last = fill_new(self._last, self._table, -np.inf)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._last[units] = tick.step

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        asked = candidates[self._last[candidates] > tick.step - 2]
        order = np.lexsort((tie_hash(asked, self._seed, tick.step), -self._last[asked]))
        return asked[order[:max_units]]
