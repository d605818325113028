"""The notes' placement score, as written and with a usable scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import POLICIES, Policy, creation_step, fill_new
from kvpager.policies.scores import MassEMA, normalise

__all__ = ["Placement"]


@dataclass
class Placement(Policy):
    """Keep by ``P = 0.25 R + 0.55 E + 0.20 N``: recency, EMA of attention, sink zone.

    Source: note 000, part 12, with its weights and cuts 0.3 and 0.6. Differs in what the note leaves
    open: ``R = 2**(-age / half_life)`` since the last access or creation, ``N = 1`` for blocks that
    begin before `sink_tokens`, and E may be normalised; ``"raw"`` is the note's own scale, on which
    next to nothing reaches the cuts.

    Parameters
    ----------
    weights : sequence of float
        Three: of R, E and N; >= 0, sum 1.
    alpha : float
        Of the EMA.
    scale : {"raw", "rank", "max", "uniform"}
        How E is normalised.
    cuts : sequence of float, optional
        Two. Below the first: not kept in HBM, even if there is room; from the second on: tier 0.
        None: fill to capacity by P.
    half_life : float
        Of R, in steps.
    sink_tokens : int
        The notes' anchor zone.
    persist_scores : bool
        Whether E survives eviction.
    """

    weights: Sequence[float] = (0.25, 0.55, 0.20)
    alpha: float = 0.2
    scale: str = "raw"
    cuts: Sequence[float] | None = None
    half_life: float = 128.0
    sink_tokens: int = 100
    persist_scores: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def __post_init__(self) -> None:
        """Check the weights and set where tier 0 begins."""
        if len(self.weights) != 3 or min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9:
            raise BadInput(f"placement weights {self.weights} must be three, >= 0 and sum to 1: scale them")
        if self.cuts is not None and not (isinstance(self.cuts, list | tuple) and len(self.cuts) == 2):
            raise BadInput(f"placement cuts {self.cuts!r} must be two, such as [0.3,0.6]")
        if self.half_life <= 0:
            raise BadInput(f"placement half_life {self.half_life} must be a number of steps above 0")
        self.pinned_from = self.cuts[1] if self.cuts else float("inf")

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._ema = MassEMA(table, self.alpha, self.persist_scores)
        self._scaled: NDArray[np.float64] = np.empty(0)
        self._last: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._ema.on_new()
        self._scaled, self._last = fill_new(self._scaled, self._table), fill_new(self._last, self._table)
        self._last[units] = creation_step(self._table, tick, units)

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._last[units] = tick.step

    def on_mass(self, seen: Seen) -> None:
        self._ema.on_mass(seen)
        scores = self._table.layer_view(self._ema.scores, seen.tick.layer)
        self._table.layer_view(self._scaled, seen.tick.layer)[:] = normalise(scores.T, self.scale).T

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        self._ema.on_gone(units, freed)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        recency = 2.0 ** ((self._last[units] - tick.step) / self.half_life)
        sink = self._table.first_token[units] < self.sink_tokens
        score = self.weights[0] * recency + self.weights[1] * self._scaled[units] + self.weights[2] * sink
        return score if self.cuts is None else np.where(score < self.cuts[0], -np.inf, score)


POLICIES.register("placement")(Placement)
POLICIES.register("placement-rank")(partial(Placement, scale="rank"))
POLICIES.register("placement-cuts")(partial(Placement, cuts=(0.3, 0.6)))
POLICIES.register("placement-rank-cuts")(partial(Placement, scale="rank", cuts=(0.3, 0.6)))
