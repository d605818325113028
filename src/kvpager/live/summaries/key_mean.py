"""The mean of a block's keys."""

from __future__ import annotations

from functools import partial

from kvpager.core import Ids
from kvpager.live.summaries.base import SUMMARIES, CodedSummary, Floats, group_mass

__all__ = ["KeyMean"]


@SUMMARIES.register("key_mean")
class KeyMean(CodedSummary):
    """Score by the mass that each block would draw if all its keys were their mean.

    Source: Based on block mean keys as in MoBA, Lu et al., arXiv 2502.13189. Differs in: nothing is trained.

    Parameters
    ----------
    layers, kv_heads, k_dim, block_size : int
        Shape.
    bits : {16, 8, 32}
        Of each element; 16 is bfloat16.
    """

    def __init__(self, layers: int, kv_heads: int, k_dim: int, block_size: int, *, bits: int = 16) -> None:
        super().__init__(layers, kv_heads, k_dim, block_size, {"means": "near"}, bits)

    def put(self, layer: int, blocks: Ids, keys: Floats) -> None:  # noqa: D102 - of the protocol
        if len(blocks):
            self.write(layer, blocks, {"means": keys.mean(2)})

    def score(self, layer: int, query: Floats, blocks: Ids) -> Floats:  # noqa: D102 - of the protocol
        rows = self.rows.of(blocks)
        if self.compiled:
            from kvpager.live.kernels.score import score_means

            (means,), codes = self.stored(layer)
            return score_means(query, means, rows, codes and codes[0])
        return group_mass(self.product(layer, "means", query, rows))


SUMMARIES.register("key_mean_int8")(partial(KeyMean, bits=8))
