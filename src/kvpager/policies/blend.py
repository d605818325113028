"""Access frequency plus attention mass: the recommended placement so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy
from kvpager.policies.scores import AccessEMA, MassEMA

__all__ = ["Blend"]


@POLICIES.register("blend")
@dataclass
class Blend(Policy):
    """Keep by ``EMA(access) + weight · EMA(mass)``, with a small bonus for what is resident.

    Access frequency wins hits, mass keeps peaky heads from starving; the bonus saves moves.
    Source: kvpager's own. Its constants were tuned on one prose text and judged on others.

    Parameters
    ----------
    access_alpha, mass_alpha : float
        Weights of the newest access and mass, in (0, 1].
    mass_weight : float
        Weight of the mass score against the access score, >= 0.
    keep_bonus : float
        Added to the key of residents.
    persist_scores : bool
        Whether scores survive eviction.
    """

    access_alpha: float = 0.1
    mass_alpha: float = 0.2
    mass_weight: float = 10.0
    keep_bonus: float = 0.05
    persist_scores: bool = True
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._access = AccessEMA(table, self.access_alpha, self.persist_scores)
        self._mass = MassEMA(table, self.mass_alpha, self.persist_scores)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._access.on_new(tick, units)
        self._mass.on_new()

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._access.on_access(tick, units)

    def on_mass(self, seen: Seen) -> None:
        self._mass.on_mass(seen)

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        self._access.on_gone(units, freed)
        self._mass.on_gone(units, freed)

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._access.scores[units] + self.mass_weight * self._mass.scores[units]
