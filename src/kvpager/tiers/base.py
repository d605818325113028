"""What a tier is: it moves bytes and answers for them. Live and modelled tiers share this contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Done, Ids, Move
from kvpager.errors import InvariantError
from kvpager.registry import Registry

__all__ = ["TIERS", "ImmediateTier", "Tier"]

TIERS: Registry[Callable[..., Tier]] = Registry("tiers", "kvpager.tiers")


class Tier(Protocol):
    """One level of the hierarchy, by number: 0 HBM pinned, 1 HBM, 2 CXL or host DRAM, 3 NVMe."""

    number: int
    capacity_bytes: int
    align_bytes: int

    def submit(self, move: Move, slots: Ids) -> None:
        """Start `move`; never blocks. A full queue raises `TierBusy`, and the driver waits."""
        ...

    def wait(self, moves: Sequence[int], deadline_s: float) -> list[Done]:
        """Wait until `moves` are done, at most `deadline_s` seconds, and return their answers."""
        ...

    def poll(self) -> list[Done]:
        """Return the answers that have come in since the last call."""
        ...

    def used_bytes(self) -> int:
        """Bytes that the tier holds now."""
        ...

    def forget(self, units: Ids) -> None:
        """Drop whatever is held of `units`."""
        ...

    def check(self) -> None:
        """Raise `InvariantError` if the tier contradicts itself."""
        ...


class ImmediateTier(Tier):
    """A tier that is done with a move when it has taken it: it counts the move, and answers with success.

    A subclass knows what it holds, and moves the bytes.

    Parameters
    ----------
    number : int
        2 or 3.
    capacity_bytes : int
        What it can hold.
    unit_bytes : int
        Payload of a unit.

    Attributes
    ----------
    read_units, written_units : dict of str to int
        By the move's reason.
    """

    def __init__(self, number: int, capacity_bytes: int, unit_bytes: int) -> None:
        self.number, self.capacity_bytes, self.unit_bytes = number, capacity_bytes, unit_bytes
        self.read_units: dict[str, int] = {}
        self.written_units: dict[str, int] = {}
        self._answers: list[Done] = []

    def submit(self, move: Move, slots: Ids) -> None:
        """Read or write by the direction of `move`.

        Raises
        ------
        InvariantError
            If the move does not concern this tier, or reads what the tier does not hold (law 10).
        """
        if move.dst == self.number:
            self._write(move.units, slots)
            counted = self.written_units
        elif move.src == self.number:
            if not self._holds(move.units).all():
                raise InvariantError(f"move {move.id} reads units that tier {self.number} does not hold (law 10)")
            self._read(move.units, slots)
            counted = self.read_units
        else:
            raise InvariantError(f"move {move.id} from tier {move.src} to {move.dst} does not concern tier {self.number}")
        count = len(move.units)
        counted[move.why] = counted.get(move.why, 0) + count
        self._answers.append(Done(move.id, np.ones(count, np.bool_), count * self.unit_bytes))

    def wait(self, moves: Sequence[int], deadline_s: float) -> list[Done]:
        found = [answer for answer in self._answers if answer.move in moves]
        self._answers = [answer for answer in self._answers if answer.move not in moves]
        return found

    def poll(self) -> list[Done]:
        answers, self._answers = self._answers, []
        return answers

    def check(self) -> None:
        """Raise `InvariantError` if more is held than fits."""
        if self.used_bytes() > self.capacity_bytes:
            raise InvariantError(f"tier {self.number} holds {self.used_bytes()} of {self.capacity_bytes} bytes (law 6)")

    def _holds(self, units: Ids) -> NDArray[np.bool_]:
        """Which of `units` it holds."""
        raise NotImplementedError

    def _write(self, units: Ids, slots: Ids) -> None:
        """Hold `units`, which stand in `slots`."""
        raise NotImplementedError

    def _read(self, units: Ids, slots: Ids) -> None:
        """Bring `units` to `slots`."""
        raise NotImplementedError
