"""What a tier is: it moves bytes and answers for them. Live and modelled tiers share this contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kvpager.core import Done, Ids, Move
from kvpager.registry import Registry

__all__ = ["TIERS", "Tier"]

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
