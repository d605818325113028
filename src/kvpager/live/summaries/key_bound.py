"""Per-channel maxima and minima of a block's keys."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.live.summaries.base import SUMMARIES, CodedSummary, Floats

__all__ = ["KeyBound"]


@SUMMARIES.register("key_bound")
class KeyBound(CodedSummary):
    """Score by the upper bound ``sum_c max(q_c * min_c, q_c * max_c)``, mean over the group.

    Source: Quest, Tang et al., arXiv 2406.10774. Differs in: the mean over the group of a bound that is linear in the
    halves of the query is one product; in 8 bits, maxima are rounded up and minima down, so that it stays a bound.

    Parameters
    ----------
    layers, kv_heads, k_dim, block_size : int
        Shape.
    bits : {32, 8}
        Of each maximum and minimum.
    """

    def __init__(self, layers: int, kv_heads: int, k_dim: int, block_size: int, *, bits: int = 32) -> None:
        names = {"maxima": "up", "minima": "down"}
        super().__init__(layers, kv_heads, k_dim, block_size, names, bits)

    def put(self, layer: int, blocks: Ids, keys: Floats) -> None:  # noqa: D102 - of the protocol
        if len(blocks):
            self.write(layer, blocks, {"maxima": keys.max(2), "minima": keys.min(2)})

    def score(self, layer: int, query: Floats, blocks: Ids) -> Floats:  # noqa: D102 - of the protocol
        rows = self.rows.of(blocks)
        if self.compiled:
            from kvpager.live.kernels.score import score_bounds

            (maxima, minima), codes = self.stored(layer)
            return score_bounds(query, maxima, minima, rows, codes)
        high, low = np.maximum(query, 0).mean(1, keepdims=True), np.minimum(query, 0).mean(1, keepdims=True)
        scores: NDArray[Any] = (self.product(layer, "maxima", high, rows) + self.product(layer, "minima", low, rows))[:, 0]
        return scores


SUMMARIES.register("key_bound_int8")(partial(KeyBound, bits=8))
