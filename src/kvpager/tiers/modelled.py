"""A tier that keeps only counts and bytes: what replay runs over. It has no clock and moves nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvpager.core import Done, Ids, Move
from kvpager.errors import InvariantError
from kvpager.tiers.base import TIERS

__all__ = ["ModelledTier"]


@TIERS.register("modelled")
class ModelledTier:
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

    Attributes
    ----------
    read_units, written_units : dict of str to int
        By the move's reason.
    """

    align_bytes = 4096

    def __init__(self, number: int, capacity_bytes: int, unit_bytes: int) -> None:
        self.number, self.capacity_bytes, self.unit_bytes = number, capacity_bytes, unit_bytes
        self.read_units: dict[str, int] = {}
        self.written_units: dict[str, int] = {}
        self._held = np.zeros(0, np.bool_)
        self._answers: list[Done] = []

    def submit(self, move: Move, slots: Ids) -> None:
        """Count `move` by its direction; it is done at once.

        Raises
        ------
        InvariantError
            If the move does not concern this tier, or reads what the tier does not hold (law 10).
        """
        count = len(move.units)
        if move.dst == self.number:
            self.hold(move.units)
            self.written_units[move.why] = self.written_units.get(move.why, 0) + count
        elif move.src == self.number:
            if not self._held[move.units].all():
                raise InvariantError(f"move {move.id} reads units that tier {self.number} does not hold (law 10)")
            self.read_units[move.why] = self.read_units.get(move.why, 0) + count
        else:
            raise InvariantError(f"move {move.id} from tier {move.src} to {move.dst} does not concern tier {self.number}")
        self._answers.append(Done(move.id, np.ones(count, np.bool_), count * self.unit_bytes))

    def hold(self, units: Ids) -> None:
        """Hold `units` as if they had been written before anything was counted."""
        top = int(units.max(initial=-1)) + 1
        if top > len(self._held):
            self._held = np.concatenate([self._held, np.zeros(max(top, 2 * len(self._held)) - len(self._held), np.bool_)])
        self._held[units] = True

    def wait(self, moves: Sequence[int], deadline_s: float) -> list[Done]:
        """Return the answers to `moves`: all are there."""
        found = [answer for answer in self._answers if answer.move in moves]
        self._answers = [answer for answer in self._answers if answer.move not in moves]
        return found

    def poll(self) -> list[Done]:
        """Return all answers since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def used_bytes(self) -> int:
        """Bytes written and not forgotten since."""
        return int(np.count_nonzero(self._held)) * self.unit_bytes

    def forget(self, units: Ids) -> None:
        """Drop whatever is held of `units`."""
        self._held[units[units < len(self._held)]] = False

    def check(self) -> None:
        """Raise `InvariantError` if more is held than fits."""
        if self.capacity_bytes and self.used_bytes() > self.capacity_bytes:
            raise InvariantError(f"tier {self.number} holds {self.used_bytes()} of {self.capacity_bytes} bytes (law 6)")
