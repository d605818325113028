"""Fetch what key summaries promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies.base import fill_new
from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["KeySummary"]

SCALES = ("share", "rank", "cover")


@PREFETCHERS.register("key-summary")
@dataclass
class KeySummary(Prefetcher):
    """Fetch the blocks whose keys promise most under the query of their layer's last tick, by the bound of Quest.

    A step's own bounds rank what that step reads; one step later they are a guess. A live run does not hand them on yet.
    Source: the bounds are Quest's, Tang et al., arXiv 2406.10774; that queries of neighbouring steps are alike is FreeKV's
    premise, arXiv 2505.13109.

    Parameters
    ----------
    scale : {"cover", "share", "rank"}
        How heads are compared: by the softmax of the bounds over the head's blocks, summed over the blocks that rank
        above; by its value; or by the percentile rank in the head.
    when : {"layer", "step"}
        After each tick for the next layer, or at the end of a step for all layers.
    """

    scale: str = "cover"
    when: str = "layer"
    needs: ClassVar[frozenset[str]] = frozenset({"bound"})

    def __post_init__(self) -> None:
        """Refuse an unknown scale."""
        if self.scale not in SCALES:
            raise BadInput(f"unknown scale {self.scale!r} of prefetcher 'key-summary': choose {', '.join(SCALES)}")

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._score: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._score = fill_new(self._score, self._table, -np.inf)

    def on_bound(self, tick: Tick, units: Ids, bound: NDArray[np.float32]) -> None:
        if units.shape[1] == 0:
            return
        share = np.exp(bound - bound.max(axis=1, keepdims=True), dtype=np.float64)
        share /= share.sum(axis=1, keepdims=True)
        if self.scale != "share":
            order = np.argsort(-share, axis=1, kind="stable")
            above = np.cumsum(np.take_along_axis(share, order, axis=1), axis=1)
            ranked = -above if self.scale == "cover" else -np.broadcast_to(np.arange(above.shape[1]), above.shape) * 1.0
            share = np.empty_like(above)
            np.put_along_axis(share, order, ranked, axis=1)
        self._score[units] = share

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        return candidates[np.argsort(-self._score[candidates], kind="stable")[:max_units]]
