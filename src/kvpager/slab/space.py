"""Which slots are free, and handing them out in runs of neighbours. For arenas in memory and slabs on disk alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import InvariantError

__all__ = ["Space"]


class Space:
    """Free and taken slots, by number.

    Parameters
    ----------
    slots : int
        How many there are; all free at first.

    Attributes
    ----------
    free : int
        Slots not taken.
    """

    def __init__(self, slots: int) -> None:
        self._free = np.ones(slots, np.bool_)
        self.free = slots
        self._next = 0

    def __len__(self) -> int:
        return len(self._free)

    def extend(self, slots: int) -> None:
        """Add `slots` free slots behind the last."""
        self._free = np.concatenate([self._free, np.ones(slots, np.bool_)])
        self.free += slots

    def take(self, count: int) -> Ids:
        """Take `count` slots: one run of neighbours if there is one, else the longest runs, each ascending.

        Raises
        ------
        InvariantError
            If fewer are free.
        """
        if count > self.free:
            raise InvariantError(f"{count} slots asked for, {self.free} of {len(self)} are free: give some back first")
        window = self._free[self._next : self._next + count]
        if len(window) == count and window.all():
            taken = np.arange(self._next, self._next + count, dtype=np.int32)
        else:
            taken = self._pick(count)
        self._free[taken] = False
        self.free -= count
        self._next = int(taken[-1]) + 1 if count else self._next
        return taken

    def _pick(self, count: int) -> Ids:
        """The shortest run that holds `count`, or else the longest runs one after another."""
        free = np.flatnonzero(self._free)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(free) != 1) + 1])
        lengths = np.diff(np.concatenate([starts, [len(free)]]))
        fits = np.flatnonzero(lengths >= count)
        if len(fits):
            first = starts[fits[np.argmin(lengths[fits])]]
            return free[first : first + count].astype(np.int32)
        order = np.argsort(-lengths, kind="stable")
        order = order[: int(np.searchsorted(np.cumsum(lengths[order]), count)) + 1]
        picked = np.concatenate([free[starts[run] : starts[run] + lengths[run]] for run in order.tolist()])
        return picked[:count].astype(np.int32)

    def claim(self, slots: NDArray[np.integer]) -> None:
        """Take these very slots, which must be free."""
        if not self._free[slots].all():
            raise InvariantError("a slot was claimed that is taken already")
        self._free[slots] = False
        self.free -= len(slots)

    def give(self, slots: NDArray[np.integer]) -> None:
        """Give taken `slots` back.

        Raises
        ------
        InvariantError
            If one is free already, unknown, or named twice.
        """
        if not len(slots):
            return
        known = int(slots.min()) >= 0 and int(slots.max()) < len(self)
        if not known or self._free[slots].any():
            raise InvariantError(f"slots were given back that are not taken: {len(slots)} slots, of {len(self)}")
        self._free[slots] = True
        if len(slots) > 1 and int(np.count_nonzero(self._free)) != self.free + len(slots):
            raise InvariantError("a slot was given back twice in one call")
        self.free += len(slots)

    def is_free(self) -> NDArray[np.bool_]:
        """Bool [slots], a copy."""
        return self._free.copy()
