"""Fetch what a model of past accesses, learnt while running, expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, Ids, Seen, Tick, UnitTable
from kvpager.policies.base import fill_new
from kvpager.policies.scores import AccessEMA, MassEMA
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["History"]

Floats = NDArray[np.float64]

FEATURES = 6
NEVER = 255.0
"""Ticks since the last access of a unit that has had none."""


@PREFETCHERS.register("history")
@dataclass
class History(Prefetcher):
    """Fetch what is most likely asked for next by a logistic regression over what reads have told of each unit.

    Features: asked for in its layer's last tick; moving averages of its accesses, fast and slow, and the root of that of
    its mass; logarithm of the ticks since its last access. It learns from the units that it was offered, which are not
    resident, whether they were asked for next: one Newton step a step, so that its labels are at least one step old.
    Source: kvpager's own; Newton steps as in Hazan et al., Machine Learning 69 (2007). Differs in: older steps are
    forgotten, and there is no projection.

    Parameters
    ----------
    fast, slow, mass : float
        Weights of the newest access and mass in the moving averages, in (0, 1].
    forget : float
        By how much a step's curvature fades with each step that follows, in [0, 1).
    when : {"layer", "step"}
        After each tick for the next layer, or at the end of a step for all layers.
    """

    fast: float = 0.3
    slow: float = 0.05
    mass: float = 0.2
    forget: float = 0.02
    when: str = "layer"
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table, self._step = table, -1
        self._often = (AccessEMA(table, self.fast), AccessEMA(table, self.slow))
        self._mass = MassEMA(table, self.mass)
        self._idle: Floats = np.empty(0)  # ticks of its layer since it was asked for
        self.weights: Floats = np.zeros(FEATURES)
        self.weights[1] = 1.0  # at first: what was asked for last
        self._slope, self._curvature, self._newest = np.zeros(FEATURES), np.eye(FEATURES), np.zeros((FEATURES, FEATURES))
        self._offered: tuple[Ids, Floats] = np.empty(0, np.int32), np.empty((0, FEATURES))

    def on_new(self, tick: Tick, units: Ids) -> None:
        for often in self._often:
            often.on_new(tick, units)
        self._mass.on_new()
        self._idle = fill_new(self._idle, self._table, NEVER)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        if tick.step != self._step:
            self._step = tick.step
            self._learn()
        self._label(tick, units)
        for often in self._often:
            often.on_access(tick, units)
        layer = self._table.layer_view(self._idle, tick.layer)
        np.minimum(layer + 1, NEVER, out=layer)
        self._idle[units] = 0

    def on_mass(self, seen: Seen) -> None:
        self._mass.on_mass(seen)

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        known = self.features(candidates)
        self._offered = candidates, known
        return candidates[np.argsort(-(known @ self.weights), kind="stable")[:max_units]]

    def features(self, units: Ids) -> Floats:
        """What is known of `units` before their next tick, float64 [units, 6]; the first is 1."""
        idle = self._idle[units]
        known = np.ones((FEATURES, len(units)))
        known[1] = idle == 0
        known[2], known[3] = (often.scores[units] for often in self._often)
        known[4] = np.sqrt(self._mass.scores[units])
        known[5] = np.log2(1 + idle) / 8
        return known.T

    def _label(self, tick: Tick, asked: Ids) -> None:
        """Note which of the units that were offered for this tick are asked for in it."""
        units, known = self._offered
        if len(units) == 0:
            return
        now = self._table.layer[units] == tick.layer
        if tick.layer == ALL_LAYERS or now.all():
            self._offered = units[:0], known[:0]
        else:
            self._offered = units[~now], known[~now]
            units, known = units[now], known[now]
        was_asked = np.zeros(self._table.size)
        was_asked[asked] = 1
        chance = 1 / (1 + np.exp(-np.clip(known @ self.weights, -30, 30)))
        self._slope += (was_asked[units] - chance) @ known
        self._newest += (known.T * (chance * (1 - chance))) @ known

    def _learn(self) -> None:
        """Take one Newton step with the labels of the steps before."""
        self._curvature = (1 - self.forget) * self._curvature + self._newest
        self.weights = self.weights + np.linalg.solve(self._curvature + np.eye(FEATURES), self._slope)
        self._slope, self._newest = np.zeros(FEATURES), np.zeros((FEATURES, FEATURES))
