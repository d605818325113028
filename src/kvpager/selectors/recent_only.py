"""The first blocks and the newest ones, whatever the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvpager.selectors.base import SELECTORS, Mask, ReadSet, View

__all__ = ["RecentOnly"]


@SELECTORS.register("recent_only")
@dataclass
class RecentOnly(ReadSet):
    """Read the first blocks and, with the rest of the read set, the newest ones: a baseline.

    Source: StreamingLLM, Xiao et al., arXiv 2309.17453. Differs in: nothing is forgotten, keys keep their positions,
    and the sink is whole blocks (4 tokens there).
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def describe(self) -> str:
        """Return the access definition in words."""
        return f"block among the newest {100 * self.read_fraction:g} %, {self.sink} first always in; open block not counted"

    def select(self, view: View) -> Mask:
        """Take the sink and the newest."""
        heads, blocks = view.resident.shape
        count = self.count(blocks)
        age = np.broadcast_to(np.arange(blocks, dtype=np.float32), (heads, blocks))
        return self.fill(age, self.forced(heads, blocks, count), count)
