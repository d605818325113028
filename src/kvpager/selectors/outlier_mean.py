"""The blocks that score highest by their oddest key and the mean of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.selectors.base import SELECTORS, ByKeys

__all__ = ["OutlierMean"]


@SELECTORS.register("outlier_mean")
@dataclass
class OutlierMean(ByKeys):
    """Read each KV head's blocks of largest mass as their oddest key and the mean of the others tell it.

    The oddest key is the one farthest from the block's mean; the mean of the others counts once for each of them.
    Source: kvpager's own; keeping outlier keys apart from the mean is ShadowKV's idea, Sun et al., arXiv 2410.21465.
    """

    summary: ClassVar[str] = "outlier_mean"
    score_name: ClassVar[str] = "mass by outlier and mean key"
