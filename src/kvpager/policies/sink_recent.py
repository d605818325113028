"""Attention sinks and a recency window, by position alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import PIN, POLICIES, Policy

__all__ = ["SinkRecent"]


@POLICIES.register("sink-recent")
@dataclass
class SinkRecent(Policy):
    """Keep the first tokens and, with the rest of the room, the newest ones.

    Source: StreamingLLM, Xiao et al., arXiv 2309.17453. Differs in: evicted units stay in the backing
    store and keep their positions; the sink is rounded up to whole blocks (4 tokens there, one block here).

    Parameters
    ----------
    sink_tokens : int
        Tokens at the start that are pinned.
    """

    sink_tokens: int = 16

    def __post_init__(self) -> None:
        """Pins stand in tier 0."""
        self.pinned_from = PIN / 2

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        first = self._table.first_token[units].astype(np.float64)
        return np.where(first < self.sink_tokens, PIN - first, first)
