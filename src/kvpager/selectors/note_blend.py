"""The source notes' blend of distance and past mass, as a choice of what is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.selectors.base import SELECTORS, ByHistory, View

__all__ = ["NoteBlend"]


@SELECTORS.register("note_blend")
@dataclass
class NoteBlend(ByHistory):
    """Read by ``0.6 / (1 + distance / 100) + 0.4 · past mass / its maximum``: a baseline that never sees the query.

    Source: note 000, part 12, the prefetch score. Differs in: it chooses what is read; the maximum is over the KV
    head's blocks behind the sink, and the distance counts from the block's last token to the end of the last complete block.

    Parameters
    ----------
    rope_weight, ema_weight : float
        Of the two terms.
    distance_scale : float
        In tokens.
    """

    rope_weight: float = 0.6
    ema_weight: float = 0.4
    distance_scale: float = 100.0

    def describe(self) -> str:
        """Return the access definition in words."""
        share = f"{100 * self.read_fraction:g} % of largest blend of nearness and past mass"
        return f"block among its KV head's {share}{self.pinned()}; open block not counted"

    def rank(self, view: View, score: NDArray[np.float32]) -> NDArray[np.float32]:
        """Blend the two terms."""
        blocks = score.shape[1]
        distance = view.block_size * np.arange(blocks - 1, -1, -1, dtype=np.float32)
        most = score[:, self.sink :].max(axis=1, keepdims=True, initial=0)
        share = np.divide(score, most, out=np.zeros_like(score), where=most > 0)
        near = np.float32(self.rope_weight) / (1 + distance / np.float32(self.distance_scale))
        ranked: NDArray[np.float32] = near + np.float32(self.ema_weight) * share
        return ranked
