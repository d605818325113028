"""A block's oddest key, and the mean of the others."""

from __future__ import annotations

from functools import partial

import numpy as np

from kvpager.core import Ids
from kvpager.live.summaries.base import SUMMARIES, CodedSummary, Floats, group_mass

__all__ = ["OutlierMean"]


@SUMMARIES.register("outlier_mean")
class OutlierMean(CodedSummary):
    """Score by the mass that each block would draw if all its keys but the oddest were their mean.

    The oddest key is the one farthest from the block's mean. A block of n keys weighs
    ``exp(q · oddest) + (n - 1) exp(q · mean of the others)``.
    Source: kvpager's own; keeping outlier keys apart from the mean is ShadowKV's idea, Sun et al., arXiv 2410.21465.

    Parameters
    ----------
    layers, kv_heads, k_dim, block_size : int
        Shape.
    bits : {4, 8, 32}
        Of each element.
    """

    def __init__(self, layers: int, kv_heads: int, k_dim: int, block_size: int, *, bits: int = 4) -> None:
        super().__init__(layers, kv_heads, k_dim, block_size, {"outliers": "near", "means": "near"}, bits)

    def put(self, layer: int, blocks: Ids, keys: Floats) -> None:  # noqa: D102 - of the protocol
        if not len(blocks):
            return
        total = keys.sum(2)
        distance = np.square(keys - total[:, :, None] / self.block_size).sum(3)
        oddest = distance.argmax(2)[..., None, None]
        outliers = np.take_along_axis(keys, oddest, 2)[:, :, 0]
        others = max(self.block_size - 1, 1)
        self.write(layer, blocks, {"outliers": outliers, "means": (total - outliers) / others})

    def score(self, layer: int, query: Floats, blocks: Ids) -> Floats:  # noqa: D102 - of the protocol
        rows = self.rows.of(blocks)
        if self.compiled and self.block_size > 1:
            from kvpager.live.kernels.score import score_outlier_mean

            arrays, codes = self.stored(layer)
            packed = arrays[0] if len(arrays) == 1 else (arrays[0], arrays[1])
            return score_outlier_mean(query, packed, codes, self.block_size - 1, rows)
        outlier = self.product(layer, "outliers", query, rows)
        if self.block_size == 1:
            return group_mass(outlier)
        mean = self.product(layer, "means", query, rows) + np.float32(np.log(self.block_size - 1))
        return group_mass(np.logaddexp(outlier, mean))


SUMMARIES.register("outlier_mean_int8")(partial(OutlierMean, bits=8))
