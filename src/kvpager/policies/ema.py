"""Exponential moving average of attention mass: the notes' score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy
from kvpager.policies.scores import MassEMA

__all__ = ["EMA"]


@POLICIES.register("ema")
@dataclass
class EMA(Policy):
    """Keep what has drawn attention lately: ``s = alpha a + (1 - alpha) s``.

    Source: note 000, part 11 (alpha 0.2); the idea of a forgetting factor on accumulated attention is
    A2SF's, arXiv 2407.20485. Differs from the note in: the first mass seen is taken whole, a prompt's
    units start at their mean over the last prefill queries, and unread units decay (the note is silent).

    Parameters
    ----------
    alpha : float
        Weight of the newest mass, in (0, 1].
    persist_scores : bool
        Whether a score survives eviction.
    """

    alpha: float = 0.2
    persist_scores: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._ema = MassEMA(table, self.alpha, self.persist_scores)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._ema.on_new()

    def on_mass(self, seen: Seen) -> None:
        self._ema.on_mass(seen)

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        self._ema.on_gone(units, freed)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._ema.scores[units]
