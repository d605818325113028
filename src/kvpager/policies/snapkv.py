"""What the end of the prompt looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import PIN, POLICIES, Policy, fill_new

__all__ = ["SnapKV"]


@POLICIES.register("snapkv")
@dataclass
class SnapKV(Policy):
    """Keep what the last queries of the prompt attended to, and whatever was written after it.

    Source: SnapKV, Li et al., arXiv 2404.14469 (an observation window at the end of the prompt votes
    once). Differs in: it ranks residency, nothing is forgotten; blocks take the place of its pooling over
    neighbouring tokens; the window is what the recording holds, 32 queries.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._votes: NDArray[np.float64] = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._votes = fill_new(self._votes, self._table)
        if tick.step >= 0:
            self._votes[units] = PIN / 32 + self._table.first_token[units]

    def on_mass(self, seen: Seen) -> None:
        if seen.tick.step < 0:
            self._votes[seen.units] = seen.mass

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._votes[units]
