"""The blocks with the most attention mass, a fixed share of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.errors import BadInput
from kvpager.selectors.base import SELECTORS, Mask, View, top_share

__all__ = ["TopKMass"]


@SELECTORS.register("topk_mass")
@dataclass
class TopKMass:
    """Read each KV head's blocks of largest true mass: an oracle, not for live use.

    Source: exact top-k attention, the upper bound that Quest (arXiv 2406.10774) and others compare with.

    Parameters
    ----------
    read_fraction : float
        Share of the complete blocks, in (0, 1], rounded up.
    """

    read_fraction: float = 0.1
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})
    residency_free: ClassVar[bool] = True

    def describe(self) -> str:
        """Return the access definition in words."""
        return f"block among its KV head's {100 * self.read_fraction:g} % of largest mass; open block not counted"

    def select(self, view: View) -> Mask:
        """Take the largest."""
        if view.mass is None:
            raise BadInput("topk_mass needs the mass of unread blocks: use it on a recording, or choose key_bound")
        return top_share(view.mass, self.read_fraction)
