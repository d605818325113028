"""What an eviction policy of the block store is: it is told what happens, and names the block that leaves next.

Which blocks may leave at all (no block behind them, not pinned) is decided elsewhere, and told by `offer` and `withdraw`.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kvpager.registry import Registry

__all__ = ["EVICTIONS", "Eviction", "Offers", "Ranked"]

EVICTIONS: Registry[Callable[..., Eviction]] = Registry("evictions", "kvpager.store.eviction")


class Eviction(ABC):
    """Ranks blocks, which are known by their digests. Made anew for each store."""

    @abstractmethod
    def taken(self, block: bytes, tenant: bytes, size: int) -> None:
        """`block` of `size` bytes has come in. It is not offered."""

    @abstractmethod
    def read(self, block: bytes) -> None:
        """`block` was read."""

    @abstractmethod
    def gone(self, block: bytes, evicted: bool) -> None:
        """`block` has left; `evicted`: because it was the victim."""

    @abstractmethod
    def offer(self, block: bytes) -> None:
        """`block` may leave from now on."""

    @abstractmethod
    def withdraw(self, block: bytes) -> None:
        """`block` may not leave."""

    @abstractmethod
    def victim(self, tenant: bytes | None = None) -> bytes | None:
        """Which of the offered blocks, of all or of one tenant, leaves next; None if none is offered."""


class Offers:
    """Offered blocks by rank: the least one of all or of a tenant, exactly. Outdated heap rows are dropped when met."""

    def __init__(self) -> None:
        self._heaps: dict[bytes, list[tuple[Any, bytes]]] = {}
        self._ranks: dict[bytes, tuple[bytes, Any]] = {}

    def __contains__(self, block: bytes) -> bool:
        return block in self._ranks

    def put(self, block: bytes, tenant: bytes, rank: Any) -> None:
        """Offer `block`, or give it another rank."""
        self._ranks[block] = tenant, rank
        heap = self._heaps.setdefault(tenant, [])
        heapq.heappush(heap, (rank, block))
        if len(heap) > 2 * len(self._ranks) + 64:
            heap[:] = [(rank, block) for block, (whose, rank) in self._ranks.items() if whose == tenant]
            heapq.heapify(heap)

    def discard(self, block: bytes) -> None:
        """Offer `block` no longer."""
        self._ranks.pop(block, None)

    def least(self, tenant: bytes | None = None) -> bytes | None:
        """Return the block of least rank."""
        tops = (self._top(whose) for whose in ([*self._heaps] if tenant is None else [tenant]))
        return min((top for top in tops if top is not None), default=(None, None))[1]

    def _top(self, tenant: bytes) -> tuple[Any, bytes] | None:
        heap = self._heaps.get(tenant, [])
        while heap and self._ranks.get(heap[0][1]) != (tenant, heap[0][0]):
            heapq.heappop(heap)
        if not heap:
            self._heaps.pop(tenant, None)
            return None
        return heap[0]


class Ranked(Eviction):
    """A policy whose blocks have ranks that change only when they are read: the least one leaves."""

    def __init__(self) -> None:
        self._offers = Offers()
        self._ranks: dict[bytes, tuple[bytes, Any]] = {}

    @abstractmethod
    def rank(self, before: Any) -> Any:
        """Rank of a block that is used now; `before`: what it was, None of a new one."""

    def taken(self, block: bytes, tenant: bytes, size: int) -> None:
        """See `Eviction`."""
        self._ranks[block] = tenant, self.rank(None)

    def read(self, block: bytes) -> None:
        """See `Eviction`."""
        tenant, before = self._ranks[block]
        self._ranks[block] = tenant, self.rank(before)
        if block in self._offers:
            self.offer(block)

    def gone(self, block: bytes, evicted: bool) -> None:
        """See `Eviction`."""
        self._offers.discard(block)
        del self._ranks[block]

    def offer(self, block: bytes) -> None:
        """See `Eviction`."""
        self._offers.put(block, *self._ranks[block])

    def withdraw(self, block: bytes) -> None:
        """See `Eviction`."""
        self._offers.discard(block)

    def victim(self, tenant: bytes | None = None) -> bytes | None:
        """See `Eviction`."""
        return self._offers.least(tenant)
