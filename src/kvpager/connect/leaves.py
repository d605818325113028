"""Which block of a prefix tree leaves next: the one used longest ago among those that nothing present continues.

A block is of use only with all blocks before it. A plain LRU that forgets the order drops a prompt's first blocks, and what
is left of it serves nobody.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["Leaves"]

_MOST_STRANGERS = 4096


class Leaves:
    """Least recent use among the leaves of a forest. Keys are bytes; each continues one other at most.

    A key is *present* from `add` to `discard` or `victims`, and may leave only while it is *free*.
    """

    def __init__(self) -> None:
        self._rank: dict[bytes, int] = {}  # of those present, by last use
        self._free: set[bytes] = set()
        self._before: dict[bytes, bytes] = {}  # what a key continues; known before it is present
        self._after: Counter[bytes] = Counter()  # how many of those present continue a key
        self._heap: list[tuple[int, bytes]] = []  # with entries that are outdated: see `_may_leave`
        self._clock = 0

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, key: bytes) -> bool:
        return key in self._rank

    def link(self, key: bytes, before: bytes) -> None:
        """Learn that `key` continues `before`. What is known of a key stays."""
        if key in self._before or key == before:
            return
        if len(self._before) > 2 * len(self._rank) + _MOST_STRANGERS:
            self._before = {one: other for one, other in self._before.items() if one in self._rank}
        self._before[key] = before
        if key in self._rank:
            self._after[before] += 1

    def add(self, key: bytes) -> None:
        """Take in a key, as the one used last. It is not free."""
        if key in self._rank:
            self.discard(key)
        self._tick(key)
        if key in self._before:
            self._after[self._before[key]] += 1

    def discard(self, key: bytes) -> None:
        """Take a key out."""
        if key in self._rank:
            self._take_out(key)
            self._before.pop(key, None)

    def clear(self) -> None:
        """Take everything out."""
        self.__init__()  # type: ignore[misc]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Mark `keys`, first to last of a prompt, as used now; the last counts as the one used longest ago."""
        for key in reversed(keys):
            if key in self._rank:
                self._tick(key)
                self._offer(key)
        self._compact()

    def free(self, key: bytes) -> None:
        """Let a key leave."""
        if key in self._rank:
            self._free.add(key)
            self._offer(key)
            self._compact()

    def hold(self, key: bytes) -> None:
        """Do not let a key leave."""
        self._free.discard(key)

    def victims(self, count: int, kept: Iterable[bytes]) -> list[bytes] | None:
        """Take out and return `count` keys, none of them `kept` or before a kept one.

        None, and nothing is changed, if there are not as many.
        """
        kept = self._with_all_before(kept)
        chosen: list[tuple[int, bytes]] = []
        passed: list[tuple[int, bytes]] = []
        while self._heap and len(chosen) < count:
            entry = heapq.heappop(self._heap)
            if not self._may_leave(*entry):
                continue
            if entry[1] in kept:
                passed.append(entry)
                continue
            chosen.append(entry)
            self._take_out(entry[1])
        for entry in passed:
            heapq.heappush(self._heap, entry)
        if len(chosen) < count:
            for rank, key in reversed(chosen):
                self._put_back(rank, key)
            return None
        for _, key in chosen:
            self._before.pop(key, None)
        return [key for _, key in chosen]

    def _with_all_before(self, keys: Iterable[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for key in keys:
            one: bytes | None = key
            while one is not None and one not in found:
                found.add(one)
                one = self._before.get(one)
        return found

    def _may_leave(self, rank: int, key: bytes) -> bool:
        return self._rank.get(key) == rank and key in self._free and not self._after[key]

    def _tick(self, key: bytes) -> None:
        self._clock += 1
        self._rank[key] = self._clock

    def _offer(self, key: bytes) -> None:
        rank = self._rank[key]
        if self._may_leave(rank, key):
            heapq.heappush(self._heap, (rank, key))

    def _take_out(self, key: bytes) -> None:
        del self._rank[key]
        self._free.discard(key)
        before = self._before.get(key)
        if before is not None:
            self._after[before] -= 1
            if not self._after[before]:
                del self._after[before]
                if before in self._rank:
                    self._offer(before)

    def _put_back(self, rank: int, key: bytes) -> None:
        self._rank[key] = rank
        self._free.add(key)
        if key in self._before:
            self._after[self._before[key]] += 1
        self._offer(key)

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._free) + 64:
            self._heap = [(self._rank[key], key) for key in self._free if not self._after[key]]
            heapq.heapify(self._heap)
