"""The blocks whose mean key scores highest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.selectors.base import SELECTORS, ByKeys

__all__ = ["KeyMean"]


@SELECTORS.register("key_mean")
@dataclass
class KeyMean(ByKeys):
    """Read each KV head's blocks of largest mass as their mean keys tell it.

    Source: Based on block mean keys as in MoBA, Lu et al., arXiv 2502.13189. Differs in: nothing is trained, and the
    mass of a KV head is the mean over its query group.
    """

    summary: ClassVar[str] = "key_mean"
    score_name: ClassVar[str] = "mass by mean key"
