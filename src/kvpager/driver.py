"""What replay and the live cache do alike: drive a Pager over tiers, tick by tick.

The Pager decides, the tiers move bytes, and the driver is the order in which they are called. It is one
object for both worlds, so that a prediction and a run can be compared number by number (law 3): replay gives
it modelled tiers and no memory, a live cache real tiers and the memory that attention reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from kvpager.core import ALL_LAYERS, DRAM, HBM, RECOMPUTE, Demand, Done, Grant, Ids, Move, Seen, Tick
from kvpager.errors import CapacityError, InvariantError, StorageFull, TierBusy, UnitsLost
from kvpager.pager import Pager
from kvpager.tiers.base import Tier

__all__ = ["Attend", "Driver", "Memory"]

Attend = Callable[[Ids], None]
"""Called with units that stand in HBM or in staging slots now, and may be gone when it returns."""

_NONE = np.empty(0, np.int32)
_WAIT_S = 60.0


class Memory(Protocol):
    """Where HBM's bytes are: gives units slots, and takes them back."""

    def land(self, units: Ids) -> Ids:
        """Give `units` slots to arrive in or to be written to, and return them."""
        ...

    def slots(self, units: Ids) -> Ids:
        """Slots of `units`, which stand in HBM or are staged."""
        ...

    def leave(self, units: Ids) -> None:
        """Take back the slots of `units`."""
        ...


class _NoMemory:
    """The memory of a replay: no bytes, no slots."""

    def land(self, units: Ids) -> Ids:
        return _NONE

    def slots(self, units: Ids) -> Ids:
        return _NONE

    def leave(self, units: Ids) -> None:
        pass


class Driver:
    """Calls a Pager and its tiers in the one right order.

    Parameters
    ----------
    pager : Pager
        Decides.
    tiers : mapping of int to Tier
        `DRAM` and `NVME`.
    memory : Memory, optional
        Where HBM's bytes are; a replay has none.
    lockstep : bool
        Wait at a tick's start for everything submitted before; otherwise count what happens to be done.
    moved : callable, optional
        Told the moves of each tick, as they are submitted.

    Attributes
    ----------
    full : StorageFull or None
        Why the last backup could not be written; what HBM holds goes on being served.
    """

    def __init__(
        self,
        pager: Pager,
        tiers: Mapping[int, Tier],
        *,
        memory: Memory | None = None,
        lockstep: bool = True,
        moved: Callable[[Tick, Sequence[Move]], None] | None = None,
    ) -> None:
        self.pager, self.tiers, self.lockstep = pager, tiers, lockstep
        self.memory: Memory = memory or _NoMemory()
        self.full: StorageFull | None = None
        self._moved = moved or (lambda tick, moves: None)
        self._at: dict[int, int] = {}  # the tier that works on each submitted move
        self._answers: list[Done] = []  # that came while waiting for others
        self._staged: dict[int, Ids] = {}  # units in staging slots, by round

    # ── the tick ─────────────────────────────────────────────────────────────────────────────────

    def begin(self, tick: Tick) -> None:
        """Count acknowledgements and arrivals; issue failed backups again."""
        self._settle(tick, self._arrivals())

    def append(self, tick: Tick, units: Ids) -> Ids:
        """Open `units` in HBM; return their slots.

        Raises
        ------
        CapacityError
            If HBM cannot hold its open and unconfirmed units.
        StorageFull
            If that is because the backing store has no room for backups.
        """
        try:
            moves = self.pager.append(tick, units)
        except CapacityError as error:
            raise (self.full or error) from error
        self.submit(tick, moves)
        return self.memory.land(units)

    def seal(self, tick: Tick, units: Ids) -> None:
        """Back up `units`, which are complete and confirmed."""
        self.submit(tick, self.pager.seal(tick, units))

    def admit(self, tick: Tick, units: Ids, write: Attend | None = None, seen: Seen | None = None) -> None:
        """Take in complete `units` through staging: `write` fills each round's slots, `seen` is their layer's mass."""
        rounds = self.pager.admit(tick, units)
        if seen is not None:
            self.pager.observe(seen)
        for number, moves in enumerate(rounds):
            part = self._staged[number] = moves[0].units
            self.memory.land(part)
            if write is not None:
                write(part)
            self.submit(tick, moves)
            self._settle(tick, self._wait([move.id for move in moves]))
            self._place(tick, number)

    def ask(self, demand: Demand, attend: Attend | None = None, seen: Callable[[], Seen] | None = None) -> Grant:
        """Serve one layer's demand: judge, fetch round by round, attend, observe, place.

        Raises
        ------
        UnitsLost
            If a unit has no good copy; what was fetched is given back.
        """
        tick = demand.tick
        grant = self.pager.request(demand)
        for number in self._rounds(tick, demand.units, grant, attend):
            if number == len(grant.rounds) - 1 and seen is not None:
                self.pager.observe(seen())
            self._place(tick, number)
        return grant

    def stream(self, tick: Tick, units: Ids, attend: Attend | None = None) -> Grant:
        """Read `units` once, as a prefill does: nothing is kept, and the policy does not hear of it.

        Raises
        ------
        UnitsLost
            As `ask` does.
        """
        grant = self.pager.stream(tick, units)
        for number in self._rounds(tick, units, grant, attend):
            self.memory.leave(self._staged.pop(number, _NONE))
            self.pager.unstage(number)
        return grant

    def observe(self, seen: Seen) -> None:
        """Tell the policy the mass of a tick that had no demand."""
        self.pager.observe(seen)

    def adopt(self, tick: Tick, units: Ids) -> None:
        """Take in complete `units` that the backing store holds already."""
        self.pager.adopt(tick, units)

    def prefetch(self, tick: Tick) -> None:
        """Issue what the prefetcher wants for the next layer, or at a step's end for the next step."""
        prefetcher, layers = self.pager.prefetcher, self.pager.table.num_layers
        if prefetcher is None or (prefetcher.when == "step" and tick.layer not in (ALL_LAYERS, layers - 1)):
            return
        whole = prefetcher.when == "step" or tick.layer == ALL_LAYERS
        ahead = self.pager.table.of_layer(ALL_LAYERS if whole else (tick.layer + 1) % layers)
        self.submit(tick, self.pager.prefetch(tick, ahead))

    def release(self, tick: Tick, units: Ids) -> None:
        """Forget freed `units` everywhere."""
        if len(units) == 0:
            return
        self.pager.pages.grow()  # a call that was broken off early has told nobody of the blocks that it opened
        flying = units[self.pager.pages.flying[units]]
        if len(flying):  # their slots are being written to
            self._answers += self._wait([move.id for move in self._flights()])
            self.memory.leave(flying)
        self.submit(tick, self.pager.release(units))
        for tier in self.tiers.values():
            tier.forget(units)

    def recover(self, lost: Ids = _NONE) -> None:
        """End a tick that cannot be finished: nothing stays staged or under way into staging; `lost` units have no copy."""
        self._answers += self._wait(list(self._at))
        for part in self._staged.values():
            self.memory.leave(part)
        self._staged.clear()
        self.pager.abandon(lost)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def submit(self, tick: Tick, moves: Sequence[Move]) -> None:
        """Hand moves to the tiers they concern. A clean drop from HBM moves no bytes."""
        if not moves:
            return
        self._moved(tick, moves)
        for move in moves:
            if move.why in ("demand", "prefetch"):
                self._hand(move.src, move, self.memory.land(move.units))
            elif move.why in ("backup", "demote"):
                self._hand(move.dst, move, self.memory.slots(move.units))
            elif move.src == DRAM or move.why == "keep":
                self.tiers[DRAM].forget(move.units)
            if move.src == HBM and move.why in ("drop", "demote"):
                self.memory.leave(move.units)

    def _hand(self, number: int, move: Move, slots: Ids) -> None:
        """Give `move` to its tier, waiting while the queue is full. A full disk fails the backup of what HBM can keep."""
        while True:
            try:
                self.tiers[number].submit(move, slots)
            except TierBusy:
                self._answers += self._wait(list(self._at)[:1])
            except StorageFull as error:
                if move.src != HBM:
                    raise
                self.full = error
                self._answers.append(Done(move.id, np.zeros(len(move.units), np.bool_), 0))
                return
            else:
                self._at[move.id] = number
                return

    def _rounds(self, tick: Tick, units: Ids, grant: Grant, attend: Attend | None) -> Iterator[int]:
        """Fetch and attend round by round, reading ahead as far as the lanes go; yield each round's number when attended."""
        at_hand, rounds, lanes = units, grant.rounds, self.pager.lanes
        hit = grant.tier <= HBM
        if not hit.all():
            lost, at_hand = units[grant.tier == RECOMPUTE], units[hit]
            if len(lost):
                self._give_up(lost, None)
        for number in range(1, min(1 + lanes, len(rounds))):
            self._fetch(tick, number, rounds[number])
        if len(grant.late):
            self._arrive(self._flights(), grant.late)
            at_hand = np.concatenate([at_hand, grant.late])
        if attend is not None and len(at_hand):
            attend(at_hand)
        yield 0
        for number in range(1, len(rounds)):
            self._arrive(rounds[number])
            if attend is not None:
                attend(self._staged[number])
            yield number
            if number + lanes < len(rounds):
                self._fetch(tick, number + lanes, rounds[number + lanes])

    def _fetch(self, tick: Tick, number: int, moves: Sequence[Move]) -> None:
        self._staged[number] = np.concatenate([move.units for move in moves])
        self.submit(tick, moves)

    def _arrive(self, moves: Iterable[Move], asked: Ids | None = None) -> None:
        """Wait for `moves`; give up the tick if one of their units, or of those that are `asked` for, could not be served.

        Prefetched units that are asked for before they arrived count as arrived at the next tick only: answers are kept.
        """
        by_id = {move.id: move for move in moves}
        answers = self._wait(by_id)
        self._answers += answers
        for answer in answers + [held for held in self._answers if held.move in by_id]:  # some came while a tier was busy
            if not answer.ok.all():
                move = by_id[answer.move]
                lost = move.units[~answer.ok] if asked is None else np.intersect1d(move.units[~answer.ok], asked)
                if len(lost):
                    self._give_up(lost, move.src)

    def _flights(self) -> list[Move]:
        """Prefetches under way."""
        return [move for move in self.pager.pending.values() if move.why == "prefetch"]

    def _give_up(self, lost: Ids, tier: int | None) -> None:
        """End the tick without `lost` units, which `tier` should have served; None: it was known that no tier can."""
        self.recover(lost)
        raise UnitsLost(lost, tier)

    def _place(self, tick: Tick, number: int) -> None:
        """Let the Pager choose among resident and staged; take back the slots of what it does not keep."""
        part = self._staged.pop(number, _NONE)
        self.submit(tick, self.pager.place(tick, number))
        if len(part):
            self.memory.leave(part[~self.pager.resident(part)])

    def _arrivals(self) -> list[Done]:
        """Answers that count from now on: to all that was submitted before, or to what happens to be done."""
        if not self._at and not self._answers:
            return []
        if self.lockstep:
            self._answers += self._wait(list(self._at))
        else:
            self._poll()
        mine = [answer for answer in self._answers if answer.move in self.pager.pending]
        self._answers.clear()
        return mine

    def _settle(self, tick: Tick, done: Sequence[Done]) -> None:
        if not done:
            return
        for answer in done:
            move = self.pager.pending[answer.move]
            if move.src == DRAM:
                self.tiers[DRAM].forget(move.units)
            if move.why == "prefetch":
                self.memory.leave(move.units[~answer.ok & (self.pager.table.refs[move.units] > 0)])
        self.submit(tick, self.pager.settle(tick, done))

    def _poll(self) -> None:
        for tier in self.tiers.values():
            for answer in tier.poll():
                self._at.pop(answer.move, None)
                self._answers.append(answer)

    def _wait(self, moves: Collection[int]) -> list[Done]:
        """Wait for those of `moves` that tiers still work on, and return their answers."""
        found: list[Done] = []
        for number, tier in self.tiers.items():
            mine = [move for move in moves if self._at.get(move) == number]
            if mine:
                found += tier.wait(mine, _WAIT_S)
        for answer in found:
            del self._at[answer.move]
        missing = [move for move in moves if move in self._at]
        if missing:
            raise InvariantError(f"{len(missing)} moves were not answered within {_WAIT_S:g} s: the tier has stopped working")
        return found
