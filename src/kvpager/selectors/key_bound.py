"""The blocks whose keys could score highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.errors import BadInput
from kvpager.selectors.base import SELECTORS, Mask, View, top_share

__all__ = ["KeyBound"]


@SELECTORS.register("key_bound")
@dataclass
class KeyBound:
    """Read each KV head's blocks of largest upper bound on the query-key product.

    Source: Quest, Tang et al., arXiv 2406.10774 (per-channel minima and maxima of a block's keys).
    Differs in: the bound is averaged over the query group, so that a KV head has one choice.

    Parameters
    ----------
    read_fraction : float
        Share of the complete blocks, in (0, 1], rounded up.
    """

    read_fraction: float = 0.1
    needs: ClassVar[frozenset[str]] = frozenset({"bound"})
    residency_free: ClassVar[bool] = True

    def describe(self) -> str:
        """Return the access definition in words."""
        return f"block among its KV head's {100 * self.read_fraction:g} % of largest key bound; open block not counted"

    def select(self, view: View) -> Mask:
        """Take the largest bounds."""
        if view.bound is None:
            raise BadInput("key_bound needs recorded key bounds, and this recording has none: record it again")
        return top_share(view.bound, self.read_fraction)
