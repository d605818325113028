"""The notes' prefetch order: RoPE distance and EMA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.scores import MassEMA, normalise
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["RopeEMA"]


@dataclass
class RopeEMA(Prefetcher):
    """Fetch by ``0.6 · rope + 0.4 · ema``, ``rope = 1 / (1 + distance / 100)``.

    Source: note 000, part 12 (weights) and Appendix J (distance alone: weights 1 and 0). Differs in
    what the note leaves open: the distance is to the block's last token, and the EMA (alpha 0.2) enters as
    percentile rank within its head.

    Parameters
    ----------
    rope_weight, ema_weight : float
        Of the two terms.
    distance_scale : float
        In tokens.
    when : {"step", "layer"}
        At the end of a step for all layers, or after each tick for the next layer.
    """

    rope_weight: float = 0.6
    ema_weight: float = 0.4
    distance_scale: float = 100.0
    when: str = "step"
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._ema = MassEMA(table, 0.2)
        self._newest = 0

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._ema.on_new()
        self._newest = max(self._newest, int(self._table.first_token[units].max(initial=0)) + self._table.block_size - 1)

    def on_mass(self, seen: Seen) -> None:
        self._ema.on_mass(seen)

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        table = self._table
        distance = self._newest - (table.first_token[candidates] + table.block_size - 1)
        score = self.rope_weight * self._nearness(distance)
        if self.ema_weight:
            scaled = np.zeros(table.size)
            for layer in np.unique(table.layer[candidates]):
                scores = table.layer_view(self._ema.scores, int(layer))
                table.layer_view(scaled, int(layer))[:] = normalise(scores.T, "rank").T
            score = score + self.ema_weight * scaled[candidates]
        return candidates[np.argsort(-score, kind="stable")[:max_units]]

    def _nearness(self, distance: NDArray[np.int32]) -> NDArray[np.float64]:
        nearness: NDArray[np.float64] = 1 / (1 + distance / self.distance_scale)
        return nearness


PREFETCHERS.register("blend")(RopeEMA)
PREFETCHERS.register("blend-layer")(partial(RopeEMA, when="layer"))
PREFETCHERS.register("distance")(partial(RopeEMA, rope_weight=1.0, ema_weight=0.0))
