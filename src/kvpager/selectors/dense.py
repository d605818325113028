"""Dense attention: every block is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvpager.selectors.base import SELECTORS, Mask, View

__all__ = ["Dense"]


@SELECTORS.register("dense")
@dataclass
class Dense:
    """Read every block; what ordinary attention does, and the only lossless choice.

    Source: softmax attention, Vaswani et al., arXiv 1706.03762.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    residency_free: ClassVar[bool] = True

    def describe(self) -> str:
        """Return the access definition in words."""
        return "every complete block (dense attention); open block not counted"

    def select(self, view: View) -> Mask:
        """Read all."""
        return np.ones(view.resident.shape, np.bool_)
