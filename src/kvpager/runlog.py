"""The log of a live run: a unit table and a driver that tell each call.

Replay makes a log's calls again over modelled tiers, with these same classes: a run and its prediction are told by one
piece of code (law 3). Without a sink, both do what their bases do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from kvpager.core import Demand, Done, Grant, Ids, Move, Seen, Tick, UnitTable
from kvpager.driver import Attend, Driver, Memory
from kvpager.errors import CapacityError, StorageFull, UnitsLost
from kvpager.pager import Pager
from kvpager.tiers.base import Tier
from kvpager.traces.run import Event, Sink

__all__ = ["LoggedDriver", "LoggedTable"]

_NONE = np.empty(0, np.int32)
_SURVIVED = (CapacityError, StorageFull, UnitsLost)

T = TypeVar("T")


class LoggedTable(UnitTable):
    """A unit table that tells the calls of its owner, once each has succeeded.

    Parameters
    ----------
    num_layers, num_kv_heads, block_size : int
        As `UnitTable` takes them.
    head_block_bytes : int
        As `UnitTable` takes it.
    granularity : {"head", "layer"}
        As `UnitTable` takes it.
    sink : callable, optional
        Told each call.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        block_size: int,
        head_block_bytes: int,
        granularity: str = "head",
        *,
        sink: Sink | None = None,
    ) -> None:
        super().__init__(num_layers, num_kv_heads, block_size, head_block_bytes, granularity)
        self._sink = sink
        self._inside = False

    def new_sequence(self) -> int:
        """As `UnitTable` does."""
        sequence = self._outermost(super().new_sequence)
        self._tell("new_sequence", sequence=sequence)
        return sequence

    def open(self, seq: int, block: int) -> Ids:
        """As `UnitTable` does."""
        units = self._outermost(super().open, seq, block)
        self._tell("open", sequence=seq, number=block)
        return units

    def open_many(self, seq: int, count: int) -> Ids:
        """As `UnitTable` does."""
        units = self._outermost(super().open_many, seq, count)
        self._tell("open_many", sequence=seq, number=count)
        return units

    def seal(self, units: Ids) -> None:
        """As `UnitTable` does."""
        self._outermost(super().seal, units)
        self._tell("confirm", units=units)

    def fork(self, seq: int) -> int:
        """As `UnitTable` does."""
        twin = self._outermost(super().fork, seq)
        self._tell("fork", sequence=seq, number=twin)
        return twin

    def truncate(self, seq: int, tokens: int) -> Ids:
        """As `UnitTable` does."""
        freed = self._outermost(super().truncate, seq, tokens)
        self._tell("truncate", sequence=seq, number=tokens)
        return freed

    def free(self, seq: int) -> Ids:
        """As `UnitTable` does."""
        freed = self._outermost(super().free, seq)
        self._tell("free", sequence=seq)
        return freed

    def _outermost(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make `call`; what it calls in its turn is not told."""
        before, self._inside = self._inside, True
        try:
            return call(*arguments)
        finally:
            self._inside = before

    def _tell(self, kind: str, **fields: Any) -> None:
        if self._sink is not None and not self._inside:
            self._sink(Event(kind, **fields))


class LoggedDriver(Driver):
    """A driver that tells each call when it is over: what was asked, what was seen, and the moves that came of it.

    A call that ends in an error that a run survives is told too. Anything else, such as an interrupt amid a tick, ends
    the log: what comes after could not be replayed.

    Parameters
    ----------
    pager : Pager
        Decides.
    tiers : mapping of int to Tier
        `DRAM` and `NVME`.
    memory : Memory, optional
        As `Driver` takes it.
    lockstep : bool
        As `Driver` takes it. Without it, the log also holds whose answers each tick counted.
    moved : callable, optional
        As `Driver` takes it.
    sink : callable, optional
        Told each call.

    Attributes
    ----------
    telling : bool
        Whether the log goes on.
    """

    def __init__(
        self,
        pager: Pager,
        tiers: Mapping[int, Tier],
        *,
        memory: Memory | None = None,
        lockstep: bool = True,
        moved: Callable[[Tick, Sequence[Move]], None] | None = None,
        sink: Sink | None = None,
    ) -> None:
        super().__init__(pager, tiers, memory=memory, lockstep=lockstep, moved=moved)
        self.telling = sink is not None
        self._sink = sink
        self._inside = False
        self._moves: list[Move] = []
        self._failed: dict[int, Ids] = {}
        self._answered: Ids | None = None

    def begin(self, tick: Tick) -> None:
        """As `Driver` does."""
        with self._call("begin", tick):
            super().begin(tick)

    def append(self, tick: Tick, units: Ids) -> Ids:
        """As `Driver` does."""
        with self._call("append", tick, units=units):
            return super().append(tick, units)

    def seal(self, tick: Tick, units: Ids) -> None:
        """As `Driver` does."""
        with self._call("seal", tick, units=units):
            super().seal(tick, units)

    def admit(self, tick: Tick, units: Ids, write: Attend | None = None, seen: Seen | None = None) -> None:
        """As `Driver` does."""
        with self._call("admit", tick, units=units, seen=seen):
            super().admit(tick, units, write, seen)

    def ask(self, demand: Demand, attend: Attend | None = None, seen: Callable[[], Seen] | None = None) -> Grant:
        """As `Driver` does."""
        with self._call("ask", demand.tick, units=demand.units, asks=demand.asks) as told:

            def heard() -> Seen:
                told["seen"] = found = seen()  # type: ignore[misc]
                return found

            grant = told["grant"] = super().ask(demand, attend, None if seen is None else heard)
            return grant

    def stream(self, tick: Tick, units: Ids, attend: Attend | None = None) -> Grant:
        """As `Driver` does."""
        with self._call("stream", tick, units=units) as told:
            grant = told["grant"] = super().stream(tick, units, attend)
            return grant

    def observe(self, seen: Seen) -> None:
        """As `Driver` does."""
        with self._call("observe", seen.tick, seen=seen):
            super().observe(seen)

    def adopt(self, tick: Tick, units: Ids) -> None:
        """As `Driver` does."""
        with self._call("adopt", tick, units=units):
            super().adopt(tick, units)

    def prefetch(self, tick: Tick) -> None:
        """As `Driver` does."""
        with self._call("prefetch", tick):
            super().prefetch(tick)

    def release(self, tick: Tick, units: Ids) -> None:
        """As `Driver` does."""
        with self._call("release", tick, units=units):
            super().release(tick, units)

    def recover(self, lost: Ids = _NONE) -> None:
        """As `Driver` does."""
        with self._call("recover", Tick(0, 0), units=lost):
            super().recover(lost)

    def submit(self, tick: Tick, moves: Sequence[Move]) -> None:
        """As `Driver` does."""
        if self._inside:
            self._moves += moves
        super().submit(tick, moves)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _call(self, kind: str, tick: Tick, **told: Any) -> Iterator[dict[str, Any]]:
        """Tell of one call when it is over, unless another call made it."""
        sink = self._sink
        if sink is None or not self.telling or self._inside:
            yield told
            return
        self._inside = True
        self._moves, self._failed, self._answered = [], {}, None
        try:
            yield told
        except _SURVIVED:
            told["raised"] = True
            raise
        except BaseException:
            self.telling = False
            raise
        finally:
            self._inside = False
            if self.telling:
                failed = tuple(self._failed.items())
                sink(Event(kind, tick, answers=self._answered, moves=tuple(self._moves), failed=failed, **told))

    def _arrivals(self) -> list[Done]:
        answers = super()._arrivals()
        self._note(answers)
        if not self.lockstep or not all(answer.ok.all() for answer in answers):
            self._answered = np.array([answer.move for answer in answers], np.int32)
        return answers

    def _wait(self, moves: Collection[int]) -> list[Done]:
        answers = super()._wait(moves)
        self._note(answers)
        return answers

    def _hand(self, number: int, move: Move, slots: Ids) -> None:
        try:
            super()._hand(number, move, slots)
        except StorageFull:
            self._failed[move.id] = np.arange(len(move.units), dtype=np.int32)
            raise

    def _note(self, answers: Sequence[Done]) -> None:
        for answer in answers:
            if not answer.ok.all():
                self._failed[answer.move] = np.flatnonzero(~answer.ok).astype(np.int32)
