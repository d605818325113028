"""S3-FIFO: a small queue on probation, a main queue, and ghosts."""

from __future__ import annotations

from dataclasses import dataclass

from kvpager.store.eviction.base import EVICTIONS, Eviction, Offers

__all__ = ["S3Fifo"]

_MOST_HITS = 3


@dataclass(slots=True)
class _Block:
    tenant: bytes
    size: int
    main: bool
    position: int
    hits: int = 0


@EVICTIONS.register("s3-fifo")
class S3Fifo(Eviction):
    """Keep blocks that were read again while they stood in a small queue, or soon after they left it.

    Source: S3-FIFO, Yang et al., SOSP 2023, algorithm 1: a tenth of the bytes is on probation, two hits take a block to the
    main queue. Differs in: the first offered block of a queue is looked at, not the first; as many ghosts as blocks.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, _Block] = {}
        self._offers = {False: Offers(), True: Offers()}
        self._bytes = {False: 0, True: 0}
        self._ghosts: dict[bytes, None] = {}
        self._now = 0

    def taken(self, block: bytes, tenant: bytes, size: int) -> None:
        """See `Eviction`."""
        main = block in self._ghosts
        self._ghosts.pop(block, None)
        self._blocks[block] = _Block(tenant, size, main, self._tick())
        self._bytes[main] += size

    def read(self, block: bytes) -> None:
        """See `Eviction`."""
        one = self._blocks[block]
        one.hits = min(one.hits + 1, _MOST_HITS)

    def gone(self, block: bytes, evicted: bool) -> None:
        """See `Eviction`."""
        self.withdraw(block)
        one = self._blocks.pop(block)
        self._bytes[one.main] -= one.size
        if evicted and not one.main:
            self._ghosts[block] = None
        while len(self._ghosts) > len(self._blocks) + 1:
            del self._ghosts[next(iter(self._ghosts))]

    def offer(self, block: bytes) -> None:
        """See `Eviction`."""
        one = self._blocks[block]
        self._offers[one.main].put(block, one.tenant, one.position)

    def withdraw(self, block: bytes) -> None:
        """See `Eviction`."""
        self._offers[self._blocks[block].main].discard(block)

    def victim(self, tenant: bytes | None = None) -> bytes | None:
        """See `Eviction`."""
        while True:
            small, main = self._offers[False].least(tenant), self._offers[True].least(tenant)
            probation = 10 * self._bytes[False] >= self._bytes[False] + self._bytes[True]
            block = small if small is not None and (probation or main is None) else main
            if block is None or not self._spared(block):
                return block

    def _spared(self, block: bytes) -> bool:
        """Whether `block` stays for its hits, and if so behind all others of the main queue."""
        one = self._blocks[block]
        if one.hits < (1 if one.main else 2):
            return False
        self.withdraw(block)
        self._bytes[one.main] -= one.size
        one.hits = one.hits - 1 if one.main else 0
        one.main, one.position = True, self._tick()
        self._bytes[True] += one.size
        self.offer(block)
        return True

    def _tick(self) -> int:
        self._now += 1
        return self._now
