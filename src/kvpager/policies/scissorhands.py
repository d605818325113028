"""Persistence of importance: how often a unit mattered lately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy, fill_new

__all__ = ["Scissorhands"]


@POLICIES.register("scissorhands")
@dataclass
class Scissorhands(Policy):
    """Keep the units that drew more than their share of attention in most of the last steps.

    Source: Scissorhands, Liu et al., arXiv 2305.17118 (counts of low attention in a history window).
    Differs in: it ranks residency, nothing is forgotten; the share is that of uniform attention over the
    blocks; unread units count as below it, since a live run does not see them.

    Parameters
    ----------
    history : int
        Steps of the window, 1 to 64.
    """

    history: int = 32
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._mask = np.uint64((1 << min(max(self.history, 1), 64)) - 1)
        self._bits: NDArray[np.uint64] = np.empty(0, np.uint64)

    def on_new(self, tick: Tick, units: Ids) -> None:
        grown = fill_new(np.empty(len(self._bits)), self._table)
        self._bits = np.concatenate([self._bits, np.zeros(len(grown) - len(self._bits), np.uint64)])

    def on_mass(self, seen: Seen) -> None:
        layer = self._table.layer_view(self._bits, seen.tick.layer)
        layer <<= np.uint64(1)
        layer &= self._mask
        uniform = self._table.units_per_block / max(self._table.size, 1)  # of a block; there may be none yet
        self._bits[seen.units[seen.mass > uniform]] |= np.uint64(1)

    def on_gone(self, units: Ids, *, freed: bool) -> None:
        if freed:
            self._bits[units] = 0

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        octets = self._bits[units].view(np.uint8)
        ones: NDArray[np.float64] = np.unpackbits(octets).reshape(-1, 64).sum(axis=1, dtype=np.float64)
        return ones
