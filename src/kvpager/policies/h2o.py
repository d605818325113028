"""Heavy hitters: accumulated attention, and the newest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import PIN, POLICIES, Policy, fill_new

__all__ = ["H2O"]


@POLICIES.register("h2o")
@dataclass
class H2O(Policy):
    """Keep what has drawn the most attention in total, and a window of the newest tokens.

    Source: H2O, Zhang et al., arXiv 2306.14048. Differs in: it ranks residency, nothing is forgotten;
    the window is a number of tokens, not half of the budget; sums begin with the mean over the last
    prefill queries, because the rest of the prefill's attention is not recorded.

    Parameters
    ----------
    recent_tokens : int
        The window, rounded up to whole blocks.
    """

    recent_tokens: int = 64
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._sum: NDArray[np.float64] = np.empty(0)
        self._newest = 0

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._sum = fill_new(self._sum, self._table)
        self._newest = max(self._newest, int(self._table.first_token[units].max(initial=0)))

    def on_mass(self, seen: Seen) -> None:
        self._sum[seen.units] += seen.mass

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        age = self._newest - self._table.first_token[units]
        return np.where(age < self.recent_tokens, PIN / 16 - age, self._sum[units])
