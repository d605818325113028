"""The blocks that drew most mass so far."""

from __future__ import annotations

from dataclasses import dataclass

from kvpager.selectors.base import SELECTORS, ByHistory

__all__ = ["History"]


@SELECTORS.register("history")
@dataclass
class History(ByHistory):
    """Read each KV head's blocks of largest moving average of mass when read: a baseline that never sees the query.

    Source: note 000, part 11, its score used to choose what is read; cf. H2O, Zhang et al., arXiv 2306.14048. Differs
    in: nothing is forgotten; but a block that is never read never draws mass.
    """

    def describe(self) -> str:
        """Return the access definition in words."""
        share = f"{100 * self.read_fraction:g} % of largest past mass"
        return f"block among its KV head's {share}{self.pinned()}; open block not counted"
