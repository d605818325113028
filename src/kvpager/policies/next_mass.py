"""The clairvoyant choice for mass: what the next step will attend to most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy

__all__ = ["NextMass"]


@POLICIES.register("next-mass")
@dataclass
class NextMass(Policy):
    """Keep the units that will draw the most mass at their layer's next tick, read or not.

    Source: kvpager's own; what mass a placement reaches is measured against it. Differs in: one step of foresight, so it is
    an oracle, not a bound; that of mass is the top-mass set, with free moves. Of a ``"layer"`` unit it takes the heads' mean.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"mass", "future", "future_mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._step = np.zeros(table.num_layers, np.intp)  # of each layer's next tick
        self._mass: NDArray[np.float32] = np.zeros((1, table.num_layers, table.heads_per_layer, 1), np.float32)

    def set_future_mass(self, mass: NDArray[np.float32]) -> None:
        if self._table.granularity == "layer":
            mass = mass.mean(axis=2, keepdims=True)
        self._mass = np.concatenate([mass, np.zeros_like(mass[:1])])  # after the last step nothing is worth keeping

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._step[slice(None) if tick.layer == ALL_LAYERS else tick.layer] = tick.step + 1

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        layers, heads = self._table.layer[units], np.maximum(self._table.kv_head[units], 0)
        blocks = self._table.first_token[units] // self._table.block_size
        return self._mass[self._step[layers], layers, heads, blocks].astype(np.float64)
