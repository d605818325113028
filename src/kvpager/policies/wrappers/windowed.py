"""Keep the recent window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import PIN, Policy
from kvpager.policies.wrappers.base import Wrapper

__all__ = ["Windowed"]


@dataclass
class Windowed(Wrapper):
    """Keep the blocks that reach into the last `recent_tokens` tokens before others, newest first.

    Source: note 000, part 14 (the last 200 tokens). Differs in: sinks that are pinned go first.

    Parameters
    ----------
    policy : Policy
        Ranks the rest.
    recent_tokens : int
        Size of the window.
    """

    policy: Policy
    recent_tokens: int = 200

    def reset(self, table: UnitTable, seed: int) -> None:
        super().reset(table, seed)
        self._newest = 0

    def on_new(self, tick: Tick, units: Ids) -> None:
        super().on_new(tick, units)
        self._newest = max(self._newest, int(self._table.first_token[units].max(initial=0)) + self._table.block_size)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        age = self._newest - self._table.first_token[units] - self._table.block_size
        keys = self.policy.keep_key(tick, units)
        return np.where((age < self.recent_tokens) & (keys < PIN / 4), PIN / 4 - age, keys)
