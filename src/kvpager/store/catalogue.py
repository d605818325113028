"""Which blocks there are, who stands behind whom, what is pinned, and which one leaves next.

A block leaves only after all that were put behind it: what is behind a gap can be of no use. Pinned blocks never leave, nor
what stands before them.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator

from kvpager.errors import InvariantError
from kvpager.store.entry import Entry
from kvpager.store.eviction.base import Eviction
from kvpager.store.journal import EVICTED_FOR, Journal

__all__ = ["Catalogue"]


class Catalogue:
    """The blocks that are held, in memory.

    Parameters
    ----------
    policy : Eviction
        Ranks them.
    clock : callable
        Seconds, never set back.
    journal : Journal, optional
        Told what leaves.

    Attributes
    ----------
    held_bytes : int
        Payload of all of them.
    used_bytes : int
        What all of them take on disk.
    tenant_bytes : Counter of bytes
        The same by tenant's id.
    """

    def __init__(
        self, policy: Eviction, clock: Callable[[], float] = time.monotonic, journal: Journal | None = None
    ) -> None:  # fmt: skip
        self._policy, self._clock, self.journal = policy, clock, journal or Journal()
        self._entries: dict[bytes, Entry] = {}
        self._behind: Counter[bytes] = Counter()
        self._pins: list[tuple[float, bytes]] = []
        self.used_bytes = self.held_bytes = 0
        self.tenant_bytes: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def get(self, digest: bytes) -> Entry | None:
        """Return the block, in quarantine or not."""
        return self._entries.get(digest)

    def usable(self, digest: bytes) -> Entry | None:
        """Return the block unless it is in quarantine."""
        entry = self._entries.get(digest)
        return entry if entry is not None and (not entry.hidden_until or self._clock() >= entry.hidden_until) else None

    def add(self, entry: Entry) -> None:
        """Take a block in; of its name there must be none."""
        digest = entry.digest
        if digest in self._entries:
            raise InvariantError("a block came into the catalogue twice: remove the old one first")
        self._entries[digest] = entry
        self.held_bytes += entry.length
        self.used_bytes += entry.disk_bytes
        self.tenant_bytes[entry.tenant] += entry.disk_bytes
        if entry.parent:
            self._behind[entry.parent] += 1
            if entry.parent in self._entries:
                self._policy.withdraw(entry.parent)
        self._policy.taken(digest, entry.tenant, entry.disk_bytes)
        self._offer(entry)

    def remove(self, entry: Entry, why: str = "deleted") -> None:
        """Take a block out; `why` is one of `DEPARTURES`."""
        del self._entries[entry.digest]
        self.journal.left(entry, why)
        self.held_bytes -= entry.length
        self.used_bytes -= entry.disk_bytes
        self.tenant_bytes[entry.tenant] -= entry.disk_bytes
        if not self.tenant_bytes[entry.tenant]:
            del self.tenant_bytes[entry.tenant]
        self._policy.gone(entry.digest, why in EVICTED_FOR)
        self._unlink(entry)

    def touch(self, entry: Entry) -> None:
        """Count a read of a block."""
        entry.reads += 1
        self._policy.read(entry.digest)

    def pin(self, entry: Entry, seconds: float) -> None:
        """Keep a block for `seconds` from now; 0 ends an earlier pin."""
        self.pin_until(entry, self._clock() + seconds if seconds else 0.0)

    def pin_until(self, entry: Entry, moment: float) -> None:
        """Keep a block until a moment of the clock; 0: no longer."""
        entry.pinned_until = moment
        if moment:
            heapq.heappush(self._pins, (entry.pinned_until, entry.digest))
            self._policy.withdraw(entry.digest)
        else:
            self._offer(entry)

    def hide(self, entry: Entry, seconds: float) -> None:
        """Put a block in quarantine: it is not found for `seconds`."""
        entry.failures += 1
        entry.hidden_until = self._clock() + seconds

    def victim(self, tenant: bytes | None = None) -> Entry | None:
        """Return the block that leaves next, of all or of one tenant; None if none may."""
        self._expire()
        digest = self._policy.victim(tenant)
        if digest is None and self._break_a_ring(tenant):
            digest = self._policy.victim(tenant)
        return None if digest is None else self._entries[digest]

    def with_all_behind(self, entries: list[Entry]) -> list[Entry] | None:
        """Return `entries` and all blocks behind them, the last ones first; None if one of them is pinned."""
        self._expire()
        children: dict[bytes, list[Entry]] = {}
        for entry in self._entries.values():
            if entry.parent:
                children.setdefault(entry.parent, []).append(entry)
        found: dict[bytes, Entry] = {}
        stack = list(entries)
        while stack:
            entry = stack.pop()
            found.pop(entry.digest, None)  # met again from further up: later in line, so earlier to leave
            found[entry.digest] = entry
            stack += [child for child in children.get(entry.digest, []) if child.digest not in found]
        if any(entry.pinned_until for entry in found.values()):
            return None
        return self._last_first(found)

    def _last_first(self, found: dict[bytes, Entry]) -> list[Entry]:
        left = Counter(entry.parent for entry in found.values())
        ready = [entry for entry in found.values() if not left[entry.digest]]
        order: list[Entry] = []
        while ready:
            entry = ready.pop()
            order.append(entry)
            left[entry.parent] -= 1
            if entry.parent in found and not left[entry.parent]:
                ready.append(found[entry.parent])
        done = {entry.digest for entry in order}
        return order + [entry for entry in found.values() if entry.digest not in done]  # rings

    def _offer(self, entry: Entry) -> None:
        """Offer a block to the policy if it may leave."""
        if not self._behind[entry.digest] and not entry.pinned_until:
            self._policy.offer(entry.digest)

    def _unlink(self, entry: Entry) -> None:
        """Take `entry` from behind its parent."""
        if not entry.parent:
            return
        self._behind[entry.parent] -= 1
        if not self._behind[entry.parent]:
            del self._behind[entry.parent]
            parent = self._entries.get(entry.parent)
            if parent is not None:
                self._offer(parent)

    def _expire(self) -> None:
        """End the pins that are over."""
        now = self._clock()
        while self._pins and self._pins[0][0] <= now:
            until, digest = heapq.heappop(self._pins)
            entry = self._entries.get(digest)
            if entry is not None and entry.pinned_until == until:
                entry.pinned_until = 0.0
                self._offer(entry)

    def _break_a_ring(self, tenant: bytes | None) -> bool:
        """Whether blocks stand behind one another in a ring, and one of them was cut loose: else none would ever leave."""
        held: set[bytes] = set()
        for entry in self._entries.values():
            if entry.pinned_until:
                one: Entry | None = entry
                while one is not None and one.digest not in held:
                    held.add(one.digest)
                    one = self._entries.get(one.parent)
        walked: dict[bytes, int] = {}  # on which walk a block was met
        for walk, start in enumerate(self._entries.values()):
            one = start
            while one is not None and one.digest not in walked:
                walked[one.digest] = walk
                one = self._entries.get(one.parent)
            if one is not None and walked[one.digest] == walk and one.digest not in held and tenant in (None, one.tenant):
                self._unlink(one)
                one.parent = b""
                return True
        return False
