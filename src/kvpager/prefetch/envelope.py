"""The notes' prefetch order with the envelope that RoPE really has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import UnitTable
from kvpager.errors import BadInput
from kvpager.prefetch.base import PREFETCHERS
from kvpager.prefetch.blend import RopeEMA

__all__ = ["Envelope"]


@PREFETCHERS.register("envelope")
@dataclass
class Envelope(RopeEMA):
    """Fetch by ``0.6 · B(distance) / B(0) + 0.4 · ema``, with B the envelope of rotary embedding.

    Source: note 000, part 7 (B) and part 12 (weights); B by Abel summation, RoFormer, arXiv 2104.09864, 3.4.3. Differs in:
    the note puts 1 / (1 + distance / 100) in its place. `kvpager.analysis.rope` explains B; the tests hold both together.

    Parameters
    ----------
    rope_base : float
        The model's ``rope_theta``, > 1.
    head_dim : int
        Its head dimension, even.
    """

    rope_base: float = 10_000.0
    head_dim: int = 128

    def __post_init__(self) -> None:
        """Refuse what cannot be rotated."""
        if self.head_dim < 2 or self.head_dim % 2 or not self.rope_base > 1:
            raise BadInput(
                f"prefetcher 'envelope': head_dim {self.head_dim} must be even and rope_base {self.rope_base:g} above 1"
            )

    def reset(self, table: UnitTable, seed: int) -> None:
        super().reset(table, seed)
        self._known: NDArray[np.float64] = np.empty(0)  # by distance

    def _nearness(self, distance: NDArray[np.int32]) -> NDArray[np.float64]:
        farthest = int(distance.max(initial=0))
        if farthest >= len(self._known):
            turns = np.arange(2 * farthest + 1)[:, None] * self.rope_base ** (-2 * np.arange(self.head_dim // 2) / self.head_dim)
            sums = np.abs(np.cumsum(np.exp(1j * turns), axis=1)).mean(axis=1)
            self._known = sums / sums[0]
        return self._known[distance]
