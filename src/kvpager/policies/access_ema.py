"""Exponential moving average of the access bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy
from kvpager.policies.scores import AccessEMA

__all__ = ["AccessFrequency"]


@POLICIES.register("access-ema")
@dataclass
class AccessFrequency(Policy):
    """Keep what has been asked for most often lately, whatever mass it drew.

    Source: LFU with exponential ageing (the "least recently/frequently used" spectrum of Lee et al.,
    LRFU, IEEE Trans. Computers 50(12), 2001). Differs in: one update a step, not a reference.

    Parameters
    ----------
    alpha : float
        Weight of the newest access, in (0, 1].
    keep_bonus : float
        Added to the key of residents.
    persist_scores : bool
        Whether a score survives eviction.
    """

    alpha: float = 0.1
    keep_bonus: float = 0.0
    persist_scores: bool = True

    def reset(self, table: UnitTable, seed: int) -> None:
        self._ema = AccessEMA(table, self.alpha, self.persist_scores)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._ema.on_new(tick, units)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._ema.on_access(tick, units)

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        self._ema.on_gone(units, freed)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._ema.scores[units]
