"""A tier that keeps only counts and bytes: what replay runs over. It has no clock and moves nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.tiers.base import TIERS, ImmediateTier

__all__ = ["ModelledTier"]


@TIERS.register("modelled")
class ModelledTier(ImmediateTier):
    """Counts what is read from it and written to it, and answers every move at once with success.

    Source: the tier contract of the design; no device is modelled here, so no time is claimed.

    Parameters
    ----------
    number : int
        2 or 3.
    capacity_bytes : int
        What it can hold; 0 = unbounded.
    unit_bytes : int
        Payload of a unit.
    """

    align_bytes = 4096

    def __init__(self, number: int, capacity_bytes: int, unit_bytes: int) -> None:
        super().__init__(number, capacity_bytes, unit_bytes)
        self._held = np.zeros(0, np.bool_)

    def hold(self, units: Ids) -> None:
        """Hold `units` as if they had been written before anything was counted."""
        top = int(units.max(initial=-1)) + 1
        if top > len(self._held):
            self._held = np.concatenate([self._held, np.zeros(max(top, 2 * len(self._held)) - len(self._held), np.bool_)])
        self._held[units] = True

    def used_bytes(self) -> int:
        """Bytes written and not forgotten since."""
        return int(np.count_nonzero(self._held)) * self.unit_bytes

    def forget(self, units: Ids) -> None:
        self._held[units[units < len(self._held)]] = False

    def check(self) -> None:
        if self.capacity_bytes:
            super().check()

    def _holds(self, units: Ids) -> NDArray[np.bool_]:
        return self._held[units]

    def _write(self, units: Ids, slots: Ids) -> None:
        self.hold(units)

    def _read(self, units: Ids, slots: Ids) -> None:
        pass
