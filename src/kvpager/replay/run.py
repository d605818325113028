"""Replay of a run recording: the calls of a live run, made again over a fresh Pager and modelled tiers (law 3).

*Log*: with the run's own policy, sizes and seed, every move must come out again, and every count. *Prediction*: with others,
the counts are those of a live run that had them, since what a run asks for does not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import DRAM, NVME, STAGE, Budget, Demand, Done, Ids, Move
from kvpager.errors import BadInput, CapacityError, InvariantError, StorageFull, UnitsLost
from kvpager.pager import Pager
from kvpager.policies import make_policy
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.runlog import LoggedDriver, LoggedTable
from kvpager.tiers.modelled import ModelledTier
from kvpager.traces.run import OF_TABLE, Event, RunHeader, RunRecording, Sink, call_table
from kvpager.traces.runcounts import RunCounts, RunTally

__all__ = ["RunCase", "RunResult", "recorded_case", "replay_run"]

PREFETCH_SHARE = 0.01
"""Most units that a predicted run prefetches in a step, as a share of HBM's, where the recorded run prefetched none."""

_NONE = np.empty(0, np.int32)


@dataclass(frozen=True)
class RunCase:
    """With what to make the calls again.

    Parameters
    ----------
    policy : str
        Written form.
    hbm_units : int
        Units that tiers 0 and 1 hold.
    pool : {"global", "layer", "equal"}
        Who shares them.
    prefetcher : str, optional
        Written form.
    dram_units : int
        Units of tier 2.
    seed : int
        Of the ties.
    prefetch_bytes_per_tick : float
        Share of a prefetch call.
    """

    policy: str
    hbm_units: int
    pool: str
    prefetcher: str | None
    dram_units: int
    seed: int
    prefetch_bytes_per_tick: float


class RunResult(NamedTuple):
    """What came of a replay."""

    case: RunCase
    counts: RunCounts
    document: dict[str, Any]
    """`counts` and the tiers' own counters, ready for JSON: what a live run writes down when it ends."""
    moves_identical: int | None
    """How many moves came out as recorded: all of them; None for a prediction."""
    pager: Pager


def recorded_case(header: RunHeader) -> RunCase:
    """Return what the run itself was made with."""
    return RunCase(
        header.policy, header.hbm_units, header.pool, header.prefetcher, header.dram_units, header.seed,
        header.budget.prefetch_bytes_per_tick,
    )  # fmt: skip


def replay_run(
    recording: RunRecording,
    *,
    policy: str | None = None,
    hbm_units: int | None = None,
    pool: str | None = None,
    prefetcher: str | None = None,
    dram_units: int | None = None,
    seed: int | None = None,
    prefetch_bytes_per_tick: float | None = None,
    check: bool = False,
    sink: Sink | None = None,
) -> RunResult:
    """Make a run's calls again; whatever is not given is as recorded.

    Parameters
    ----------
    recording : RunRecording
        The run.
    policy : str, optional
        Written form. Policies that need the future get the recorded demand.
    hbm_units : int, optional
        Units that tiers 0 and 1 hold.
    pool : {"global", "layer", "equal"}, optional
        Who shares them.
    prefetcher : str, optional
        Written form; ``"none"`` for none.
    dram_units : int, optional
        Units of tier 2.
    seed : int, optional
        Of the ties.
    prefetch_bytes_per_tick : float, optional
        Share of a prefetch call.
    check : bool
        Verify laws 4 and 6 after every call (slow; tests).
    sink : callable, optional
        Told each call as it is made again, with its moves.

    Raises
    ------
    BadInput
        If another case is asked of a run in which calls or moves failed: what came after depends on that. Also for a
        policy or prefetcher that does not exist or cannot be replayed.
    CapacityError
        If HBM cannot hold what must be held at once.
    InvariantError
        If the run's own case does not come out as recorded.
    """
    own = recorded_case(recording.header)
    given: dict[str, Any] = {"policy": policy, "hbm_units": hbm_units, "pool": pool, "prefetcher": prefetcher}
    given |= {"dram_units": dram_units, "seed": seed, "prefetch_bytes_per_tick": prefetch_bytes_per_tick}
    case = replace(own, **{name: value for name, value in given.items() if value is not None})
    if case.prefetcher == "none":
        case = replace(case, prefetcher=None)
    elif case.prefetcher is not None and own.prefetcher is None and prefetch_bytes_per_tick is None:
        case = replace(case, prefetch_bytes_per_tick=_prefetch_share(recording.header, case.prefetcher, case.hbm_units))
    if case != own and recording.disturbances:
        raise BadInput(
            f"{recording.disturbances} calls or moves of this run failed, and what came after depends on that: "
            "it can be replayed as it was, but it predicts no other run; record one without faults"
        )
    return _Again(recording, case, as_recorded=case == own, check=check, sink=sink).run()


def _prefetch_share(header: RunHeader, prefetcher: str, hbm_units: int) -> float:
    when = configure(PREFETCHERS, prefetcher).when
    return PREFETCH_SHARE * hbm_units * header.unit_bytes / (1 if when == "step" else len(header.layers))


class _FailingTier(ModelledTier):
    """A modelled tier that fails the moves that failed in the run."""

    def __init__(self, number: int, capacity_bytes: int, unit_bytes: int, failed: Mapping[int, Ids]) -> None:
        super().__init__(number, capacity_bytes, unit_bytes)
        self._failed = failed

    def submit(self, move: Move, slots: Ids) -> None:
        wrong = self._failed.get(move.id)
        if wrong is not None and move.src == STAGE:
            raise StorageFull(f"move {move.id} found the disk full when it was recorded")
        super().submit(move, slots)
        if wrong is not None:
            self._answers[-1].ok[wrong] = False


class _Replayed(LoggedDriver):
    """A driver whose ticks count the answers that the run's ticks counted."""

    answers: Ids | None = None
    """Of the tick that begins, by move; None = to all that was submitted before."""

    def _arrivals(self) -> list[Done]:
        answers = super()._arrivals()
        if self.answers is None:
            return answers
        found, counted = {answer.move: answer for answer in answers}, self.answers.tolist()
        missing = [move for move in counted if move not in found]
        if missing:
            raise InvariantError(f"the run counted an answer to move {missing[0]}, which its replay never made")
        self._answers += [answer for answer in answers if answer.move not in counted]
        return [found[move] for move in counted]


class _Again:
    """One replay of a run."""

    def __init__(self, recording: RunRecording, case: RunCase, *, as_recorded: bool, check: bool, sink: Sink | None) -> None:
        header = recording.header
        policy = make_policy(case.policy)
        if policy.needs & {"unread_mass", "future_mass"}:
            raise BadInput(f"policy {case.policy!r} needs the mass of unread units, which no live run has: choose another")
        self.recording, self.case, self.as_recorded, self.check = recording, case, as_recorded, check
        self._sink = sink
        self.tally = RunTally()
        self.table = LoggedTable(*header.table_shape, sink=self._told)
        budget = header.budget if as_recorded else _budget(header, case)
        prefetcher = None if case.prefetcher is None else configure(PREFETCHERS, case.prefetcher)
        if prefetcher is not None and "bound" in prefetcher.needs:
            raise BadInput(f"prefetcher {case.prefetcher!r} needs key bounds, which no run recording holds: choose another")
        self.pager = Pager(self.table, budget, policy, prefetcher, pool=case.pool, seed=case.seed, lanes=header.lanes)
        if "future" in policy.needs:
            policy.set_future(*_future(recording))
        failed = _failed(recording) if as_recorded else {}
        size = self.table.unit_bytes
        self.tiers = {
            DRAM: _FailingTier(DRAM, budget.payload_bytes[DRAM], size, failed),
            NVME: _FailingTier(NVME, 0, size, failed),
        }
        lockstep = header.lockstep or not as_recorded
        self.driver = _Replayed(self.pager, self.tiers, lockstep=lockstep, sink=self._told)

    def run(self) -> RunResult:
        """Make all calls again."""
        for number, event in enumerate(self.recording.events()):
            self._now: Event | None = None
            try:
                self._call(event)
            except (CapacityError, StorageFull, UnitsLost) as error:
                if self.as_recorded and not event.raised:
                    raise InvariantError(f"{_place(number, event)}: the run went on, its replay ends in {error!r}") from error
                if not event.raised:
                    raise
            except (InvariantError, IndexError, KeyError) as error:
                raise InvariantError(
                    f"{_place(number, event)}: its replay breaks ({error}): the log lacks calls, or a bug"
                ) from error
            if self.as_recorded:
                self._compare(number, event)
            if self.check:
                self.pager.check()
                for tier in self.tiers.values():
                    tier.check()
        counts = self.tally.counts
        document = counts.document(self.tiers, self.table.unit_bytes)
        if self.as_recorded and self.recording.counts is not None:
            self._compare_counts(document, self.recording.counts)
        return RunResult(self.case, counts, document, counts.moves if self.as_recorded else None, self.pager)

    def _told(self, event: Event) -> None:
        self._now = event
        self.tally(event)
        if self._sink is not None:
            self._sink(event)

    def _call(self, event: Event) -> None:
        """Make one call again."""
        kind, tick, units = event.kind, event.tick, event.units
        if kind in OF_TABLE:
            call_table(self.table, event)
        elif kind == "begin":
            self.driver.answers = event.answers if self.as_recorded else None
            self.driver.begin(tick)
        elif kind == "ask":
            seen = event.seen
            self.driver.ask(Demand(tick, units, event.asks), seen=None if seen is None else lambda: seen)
        elif kind == "admit":
            self.driver.admit(tick, units, seen=event.seen)
        elif kind == "adopt":
            self.tiers[NVME].hold(units)
            self.driver.adopt(tick, units)
        elif kind == "observe" and event.seen is not None:
            self.driver.observe(event.seen)
        elif kind == "prefetch":
            self.driver.prefetch(tick)
        elif kind == "recover":
            self.driver.recover(units)
        else:
            getattr(self.driver, kind)(tick, units)  # append, seal, stream, release

    def _compare(self, number: int, then: Event) -> None:
        """Raise `InvariantError` unless the call came to what it came to in the run."""
        now = self._now
        if now is None or now.raised != then.raised:
            ended = "with an error" if then.raised else "well"
            raise InvariantError(f"{_place(number, then)}: it ended {ended} in the run, but not in its replay")
        if (now.sequence, now.number, len(now.moves)) != (then.sequence, then.number, len(then.moves)):
            raise InvariantError(
                f"{_place(number, then)}: {len(then.moves)} moves in the run, {len(now.moves)} in its replay: "
                "made by another version of kvpager or of the policy, or a bug"
            )
        for a, b in zip(then.moves, now.moves, strict=True):
            if (a.id, a.src, a.dst, a.why) != (b.id, b.src, b.dst, b.why) or not np.array_equal(a.units, b.units):
                raise InvariantError(
                    f"{_place(number, then)}: the run made {_words(a)}, its replay makes {_words(b)}: "
                    "made by another version of kvpager or of the policy, or a bug"
                )

    def _compare_counts(self, now: Mapping[str, Any], then: Mapping[str, Any]) -> None:
        """Raise `InvariantError` unless the run counted the same; where moves failed, its tiers may have counted otherwise."""
        keys = now.keys() - ({"tiers"} if self.recording.disturbances else set())
        wrong = sorted(key for key in keys if now[key] != then.get(key))
        if wrong:
            raise InvariantError(
                f"all moves are as recorded, but the run counted {wrong[0]} = {then.get(wrong[0])} and its replay {now[wrong[0]]}"
            )


def _budget(header: RunHeader, case: RunCase) -> Budget:
    """The run's budget with the case's sizes; staging as it was."""
    size = header.unit_bytes
    payload = (0, case.hbm_units * size, case.dram_units * size, header.budget.payload_bytes[NVME])
    return header.budget._replace(payload_bytes=payload, prefetch_bytes_per_tick=case.prefetch_bytes_per_tick)


def _future(recording: RunRecording) -> tuple[Ids, NDArray[np.int64], Ids]:
    """The whole demand in time order."""
    asks = [event for event in recording.events() if event.kind == "ask"]
    serial = np.repeat(np.arange(len(asks)), [len(event.units) for event in asks])
    return np.concatenate([_NONE, *(event.units for event in asks)]), serial, recording.columns["asks"]


def _failed(recording: RunRecording) -> dict[int, Ids]:
    return {move: where for event in recording.events() for move, where in event.failed}


def _place(number: int, event: Event) -> str:
    return f"call {number} of the run, {event.kind} at step {event.tick.step}, layer {event.tick.layer}"


def _words(move: Move) -> str:
    return f"move {move.id} ({move.why} of {len(move.units)} units, first {move.units[:1].tolist()}, {move.src} to {move.dst})"
