"""The blocks whose keys could score highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.selectors.base import SELECTORS, ByKeys

__all__ = ["KeyBound"]


@SELECTORS.register("key_bound")
@dataclass
class KeyBound(ByKeys):
    """Read each KV head's blocks of largest upper bound on the query-key product.

    Source: Quest, Tang et al., arXiv 2406.10774 (per-channel minima and maxima of a block's keys).
    Differs in: the bound is averaged over the query group, so that a KV head has one choice.

    Parameters
    ----------
    sink, recent : int
        First and newest complete blocks that are always read; none, as recordings have been replayed so far.
    """

    sink: int = 0
    recent: int = 0
    summary: ClassVar[str] = "key_bound"
    score_name: ClassVar[str] = "key bound"
