"""One key for all heads of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick
from kvpager.errors import BadInput
from kvpager.policies.base import Policy
from kvpager.policies.wrappers.base import Wrapper

__all__ = ["Aggregated"]


@dataclass
class Aggregated(Wrapper):
    """Give every unit of a block the maximum or mean key over its layer's heads, or over all layers too.

    Source: note 000, part 13: a position stays if any head needs it (max over heads).

    Parameters
    ----------
    policy : Policy
        Gives each unit's own key.
    how : {"max", "mean"}
        The aggregate.
    scope : {"layer", "all"}
        Over the KV heads of a layer, or over all layers and heads.
    """

    policy: Policy
    how: str = "max"
    scope: str = "layer"

    def __post_init__(self) -> None:
        """Check the two names."""
        super().__post_init__()
        if self.how not in ("max", "mean") or self.scope not in ("layer", "all"):
            raise BadInput(f"aggregate {self.how!r} over {self.scope!r} is unknown: choose max or mean, layer or all")

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        width = self._table.heads_per_layer if self.scope == "layer" else self._table.units_per_block
        groups, where = np.unique(units // width, return_inverse=True)
        members = (groups[:, None] * width + np.arange(width)).astype(np.int32)
        keys = self.policy.keep_key(tick, members.ravel()).reshape(members.shape)
        whole: NDArray[np.float64] = keys.max(axis=1) if self.how == "max" else keys.mean(axis=1)
        return whole[where]
