"""Least recently used."""

from __future__ import annotations

from typing import Any

from kvpager.store.eviction.base import EVICTIONS, Ranked

__all__ = ["Lru"]


@EVICTIONS.register("lru")
class Lru(Ranked):
    """Keep what was written or read last.

    Source: the textbook policy. Differs in: a block leaves only after those behind it, whatever its rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0

    def rank(self, before: Any) -> Any:
        """Number of the use."""
        self._now += 1
        return self._now
