"""Fetch what the layer before has just asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, Ids, Seen, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import fill_new
from kvpager.pool import tie_hash
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["PreviousLayer"]


@PREFETCHERS.register("previous-layer")
@dataclass
class PreviousLayer(Prefetcher):
    """Fetch the blocks that the layer before has asked for in this step, largest mass first; ties by a seeded hash.

    The first layer has none before it in a step: nothing is brought for it, and nothing at all with the step clock.
    Source: that neighbouring layers attend alike is what InfiniGen builds on, Lee et al., arXiv 2406.19707. Differs in: it
    takes over the demand of a head, where InfiniGen computes scores from the input of the layer before.

    Parameters
    ----------
    match : {"best", "union"}
        Whose demand a head takes over: that of the one head whose demand has been most like its own, or of all of them.
    alpha : float
        Weight of the newest likeness (Jaccard index of two demands) in its moving average.
    """

    match: str = "best"
    alpha: float = 0.1
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def __post_init__(self) -> None:
        """Refuse an unknown match."""
        if self.match not in ("best", "union"):
            raise BadInput(f"unknown match {self.match!r} of prefetcher 'previous-layer': choose best or union")

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table, self._seed = table, seed
        self._asked: NDArray[np.float64] = np.empty(0)  # step in which it was asked for last
        self._mass: NDArray[np.float64] = np.empty(0)  # when it was read last
        heads = table.heads_per_layer
        self._likeness = np.zeros((table.num_layers, heads, heads))  # of a layer's heads to those of the layer before

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._asked, self._mass = fill_new(self._asked, self._table, -np.inf), fill_new(self._mass, self._table)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._asked[units] = tick.step
        if tick.layer > 0:
            own, before = (self._demand(tick.step, layer).astype(np.float64) for layer in (tick.layer, tick.layer - 1))
            both = own.T @ before
            either = own.sum(axis=0)[:, None] + before.sum(axis=0) - both
            self._likeness[tick.layer] += self.alpha * (both / np.maximum(either, 1) - self._likeness[tick.layer])

    def on_mass(self, seen: Seen) -> None:
        self._mass[seen.units] = seen.mass

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        if tick.layer in (ALL_LAYERS, self._table.num_layers - 1):
            return candidates[:0]
        blocks, heads = candidates // self._table.units_per_block, candidates % self._table.heads_per_layer
        mass = np.where(self._demand(tick.step, tick.layer), self._table.layer_view(self._mass, tick.layer), -1.0)
        score: NDArray[np.float64]
        if self.match == "best":
            score = mass[blocks, self._likeness[tick.layer + 1].argmax(axis=1)[heads]]
        else:
            score = mass.max(axis=1)[blocks]
        wanted, score = candidates[score >= 0], score[score >= 0]
        order = np.lexsort((tie_hash(wanted, self._seed, tick.step), -score))
        return wanted[order[:max_units]]

    def _demand(self, step: int, layer: int) -> NDArray[Any]:
        """What `layer` has asked for in `step`, bool [blocks, heads]."""
        asked: NDArray[np.bool_] = self._table.layer_view(self._asked, layer) == step
        return asked
