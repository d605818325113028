"""Tier 2: host or CXL DRAM, as an arena of its own. On a machine without either, it is emulated by the same memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvpager.core import DRAM, Done, Ids, Move, UnitTable
from kvpager.errors import InvariantError
from kvpager.tiers.arena import Arena
from kvpager.tiers.base import TIERS

__all__ = ["DramTier"]


@TIERS.register("dram")
class DramTier:
    """Copies units between HBM's arena and its own, at once: a copy in memory is over before it could be waited for.

    Source: the tier contract of the design.

    Parameters
    ----------
    table : UnitTable
        Units.
    memory : uint8 [slots, unit_bytes]
        HBM's arena.
    units : int
        How many it holds; 0 = none.

    Attributes
    ----------
    read_units, written_units : dict of str to int
        By the move's reason.
    """

    number = DRAM
    align_bytes = 1

    def __init__(self, table: UnitTable, memory: NDArray[np.uint8], units: int) -> None:
        self._table, self._hbm, self._arena = table, memory, Arena(max(units, 1), table.unit_bytes)
        self.capacity_bytes = units * table.unit_bytes
        self.read_units: dict[str, int] = {}
        self.written_units: dict[str, int] = {}
        self._slot_of = np.full(0, -1, np.int32)
        self._answers: list[Done] = []

    def submit(self, move: Move, slots: Ids) -> None:
        units = move.units
        if move.dst == DRAM:
            more = self._table.size - len(self._slot_of)
            if more > 0:
                self._slot_of = np.concatenate([self._slot_of, np.full(max(more, len(self._slot_of)), -1, np.int32)])
            mine = self._slot_of[units] = self._arena.take(len(units))
            self._arena.memory[mine] = self._hbm[slots]
            self.written_units[move.why] = self.written_units.get(move.why, 0) + len(units)
        elif move.src == DRAM:
            mine = self._slot_of[units]
            if (mine < 0).any():
                raise InvariantError(f"move {move.id} reads units that tier 2 does not hold (law 10)")
            self._hbm[slots] = self._arena.memory[mine]
            self.read_units[move.why] = self.read_units.get(move.why, 0) + len(units)
        else:
            raise InvariantError(f"move {move.id} from tier {move.src} to {move.dst} does not concern tier 2")
        self._answers.append(Done(move.id, np.ones(len(units), np.bool_), len(units) * self._table.unit_bytes))

    def wait(self, moves: Sequence[int], deadline_s: float) -> list[Done]:
        found = [answer for answer in self._answers if answer.move in moves]
        self._answers = [answer for answer in self._answers if answer.move not in moves]
        return found

    def poll(self) -> list[Done]:
        answers, self._answers = self._answers, []
        return answers

    def used_bytes(self) -> int:
        return int(np.count_nonzero(self._slot_of >= 0)) * self._table.unit_bytes

    def forget(self, units: Ids) -> None:
        known = units[units < len(self._slot_of)]
        known = known[self._slot_of[known] >= 0]
        if len(known):
            self._arena.give(self._slot_of[known])
            self._slot_of[known] = -1

    def check(self) -> None:
        if self.used_bytes() > self.capacity_bytes:
            raise InvariantError(f"tier 2 holds {self.used_bytes()} of {self.capacity_bytes} bytes (law 6)")
