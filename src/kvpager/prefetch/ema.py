"""Fetch what has drawn attention lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.scores import MassEMA
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["EMAPrefetch"]


@PREFETCHERS.register("ema")
@dataclass
class EMAPrefetch(Prefetcher):
    """Fetch by the EMA of attention mass alone.

    Source: the second term of note 000, part 12, without the first.

    Parameters
    ----------
    alpha : float
        Weight of the newest mass, in (0, 1].
    when : {"layer", "step"}
        After each tick for the next layer, or at the end of a step for all layers.
    """

    alpha: float = 0.2
    when: str = "layer"
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._ema = MassEMA(table, self.alpha)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._ema.on_new()

    def on_mass(self, seen: Seen) -> None:
        self._ema.on_mass(seen)

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        return candidates[np.argsort(-self._ema.scores[candidates], kind="stable")[:max_units]]
