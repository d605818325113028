"""What happens in a store, counted: how long calls took, how long blocks stayed, why they left. For the store's thread.

Nothing here decides anything. `Journal.document` is what metrics are made of; with a log, each event is a line of it, too.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from kvpager.store.entry import Entry

__all__ = ["AGES_S", "DEPARTURES", "EVICTED_FOR", "LATENCIES_S", "Histogram", "Journal"]

LATENCIES_S = tuple(step * 10.0**power for power in range(-5, 2) for step in (1, 2.5, 5))[2:]
"""Upper bounds, 50 us to 50 s."""
AGES_S = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
"""Upper bounds, a tenth of a second to a week."""
EVICTED_FOR = {
    "quota": "its tenant would have taken more than its quota",
    "watermark": "the store was filled above the high watermark",
    "place": "a block of the same size needed its place",
    "slab": "its slab was needed for blocks of another size",
    "bound": "the store was opened with a smaller capacity",
}
DEPARTURES = {
    **EVICTED_FOR, "deleted": "somebody asked for it", "replaced": "another was put under its name",
    "lost": "its record was no longer in the table after an I/O error",
}  # fmt: skip
"""Why a block left."""


class Histogram:
    """How many fell under each of some bounds.

    Parameters
    ----------
    bounds : sequence of float
        Upper ones, ascending; what is above all of them is counted, too.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count one, or several alike."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def document(self) -> dict[str, Any]:
        """``bounds``; ``counts`` between them, one more than there are bounds; ``sum``."""
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self._sum}


class Journal:
    """Counts of one store since it was opened. Bytes are of payload.

    Parameters
    ----------
    log : callable, optional
        Takes each event, as a dictionary that JSON can hold.
    clock : callable
        Seconds, never set back: that of requests.
    """

    def __init__(self, log: Callable[[dict[str, Any]], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self.found_bytes = self.stored_bytes = 0
        self.left_bytes: Counter[str] = Counter(dict.fromkeys(DEPARTURES, 0))
        self.left_blocks: Counter[str] = Counter(dict.fromkeys(DEPARTURES, 0))
        self._histograms = {
            "read_s": Histogram(LATENCIES_S), "write_s": Histogram(LATENCIES_S), "lifetime_s": Histogram(AGES_S),
            "idle_s": Histogram(AGES_S), "reuse_s": Histogram(AGES_S),
        }  # fmt: skip

    @property
    def balance_bytes(self) -> int:
        """What the store must hold, by what came and what left."""
        return self.found_bytes + self.stored_bytes - sum(self.left_bytes.values())

    def found(self, entry: Entry) -> None:
        """A block was there when the store was opened; since when is not known."""
        self.found_bytes += entry.length

    def stored(self, entry: Entry, since_s: float) -> None:
        """A block was acknowledged that was handed in at `since_s`."""
        now = entry.came_s = entry.used_s = self._clock()
        self.stored_bytes += entry.length
        self._histograms["write_s"].add(now - since_s)
        self.tell("put", entry, seconds=now - since_s)

    def read(self, entries: Sequence[Entry], since_s: float) -> None:
        """Blocks were served that were asked for at `since_s`."""
        now = self._clock()
        self._histograms["read_s"].add(now - since_s, len(entries))
        reuse = self._histograms["reuse_s"]
        for entry in entries:
            if entry.used_s:
                reuse.add(now - entry.used_s)
            entry.used_s = now
            if self._log is not None:
                self.tell("hit", entry, seconds=now - since_s)

    def left(self, entry: Entry, why: str) -> None:
        """A block left; `why` is one of `DEPARTURES`."""
        self.left_bytes[why] += entry.length
        self.left_blocks[why] += 1
        now = self._clock()
        if entry.came_s:
            self._histograms["lifetime_s"].add(now - entry.came_s)
        if entry.used_s and why in EVICTED_FOR:
            self._histograms["idle_s"].add(now - entry.used_s)
        self.tell(
            "evict" if why in EVICTED_FOR else "leave", entry, seconds=now - entry.came_s if entry.came_s else None, cause=why
        )

    def tell(self, event: str, entry: Entry, *, seconds: float | None = None, cause: str | None = None) -> None:
        """Log an event, if there is a log."""
        if self._log is not None:
            self._log(
                {
                    "event": event, "key": entry.digest[:6].hex(), "namespace": entry.namespace[:4].hex(),
                    "tenant": entry.tenant[:4].hex(), "bytes": entry.length, "seconds": seconds, "cause": cause,
                }
            )  # fmt: skip

    def tell_of(self, event: str, digest: bytes, *, cause: str | None = None) -> None:
        """Log an event about a block that is not held."""
        if self._log is not None:
            self._log(
                {
                    "event": event, "key": digest[:6].hex(), "namespace": None, "tenant": None, "bytes": None, "seconds": None,
                    "cause": cause,
                }
            )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """Everything that was counted."""
        return {
            "found_bytes": self.found_bytes, "stored_bytes": self.stored_bytes, "left_blocks": dict(self.left_blocks),
            "left_bytes": dict(self.left_bytes), **{name: one.document() for name, one in self._histograms.items()},
        }  # fmt: skip
