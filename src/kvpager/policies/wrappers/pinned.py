"""Pin the sink tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick
from kvpager.policies.base import PIN, Policy
from kvpager.policies.wrappers.base import Wrapper

__all__ = ["Pinned"]


@dataclass
class Pinned(Wrapper):
    """Keep the blocks that begin before `sink_tokens` before everything else, lowest positions first.

    Source: note 000, parts 8 and 10 (zone of 100 tokens); StreamingLLM, arXiv 2309.17453, for the need.
    Differs in: rounded up to whole blocks, and counted inside the payload.

    Parameters
    ----------
    policy : Policy
        Ranks the rest.
    sink_tokens : int
        Size of the zone.
    """

    policy: Policy
    sink_tokens: int = 100

    def __post_init__(self) -> None:
        """Pins stand in tier 0."""
        super().__post_init__()
        self.pinned_from = min(self.pinned_from, PIN / 2)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        first = self._table.first_token[units]
        return np.where(first < self.sink_tokens, PIN - first, self.policy.keep_key(tick, units))
