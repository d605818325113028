"""The loop's brain: which units are where, what is fetched, what is kept. Pure bookkeeping.

No tensors, no I/O, no clock: the same calls give the same answers. Replay drives it over modelled
tiers, a live cache over real ones. One tick, in order::

    settle   acknowledgements and arrivals of earlier moves count only here
    append   new units; open ones cannot leave, complete ones (prefill) pass through staging
    seal     an open block became full and confirmed: its backup is issued
    request  hits are judged once; misses are fetched to staging, in rounds that fit it
    place    after all rounds but the last: keep the best of resident and staged
    observe  the attention mass of what was read
    place    after the last round, with this tick's mass known
    prefetch what the prefetcher wants for later, at most the tick's share
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvpager.core import (
    ALL_LAYERS,
    DRAM,
    HBM,
    NVME,
    PINNED,
    STAGE,
    Budget,
    Demand,
    Done,
    Grant,
    Ids,
    Move,
    Seen,
    Tick,
    UnitTable,
)
from kvpager.errors import CapacityError, InvariantError
from kvpager.policies.base import PIN, Policy
from kvpager.pool import Pools, best
from kvpager.prefetch.base import Prefetcher

__all__ = ["Pager"]

_NONE = np.empty(0, np.int32)
_ABSENT = np.int8(-2)
_FLAGS = ("_open", "_acked", "_flying", "_early", "_evictable")


class Pager:
    """Keeps the page table and obeys a policy within a budget.

    Parameters
    ----------
    table : UnitTable
        Identity of units; shared with the driver, which opens and seals blocks in it.
    budget : Budget
        Bytes. Tiers 0 and 1 share one memory of ``payload_bytes[0] + payload_bytes[1]``.
    policy : Policy
        Ranks units.
    prefetcher : Prefetcher, optional
        Names units to bring early.
    pool : {"global", "layer", "equal"}
        Who shares HBM: all units, those of a layer, or those of a layer and KV head.
    seed : int
        Seed of the hash that breaks ties.

    Raises
    ------
    CapacityError
        If a pool cannot hold even one unit.
    """

    def __init__(
        self,
        table: UnitTable,
        budget: Budget,
        policy: Policy,
        prefetcher: Prefetcher | None = None,
        *,
        pool: str = "global",
        seed: int = 0,
    ) -> None:
        self.table, self.budget, self.policy, self.prefetcher, self.seed = table, budget, policy, prefetcher, seed
        self.pools = Pools(table, pool, (budget.payload_bytes[PINNED] + budget.payload_bytes[HBM]) // table.unit_bytes)
        self.staging_units = budget.staging_bytes // table.unit_bytes
        self._dram_units = budget.payload_bytes[DRAM] // table.unit_bytes
        self._where = np.empty(0, np.int8)
        self._open = self._acked = self._flying = self._early = self._evictable = np.empty(0, np.bool_)
        self._leavers: Ids | None = None  # all evictable units, where known
        self._rounds: list[Ids] = []
        self.pending: dict[int, Move] = {}
        self._next_move = 0
        self._credit_bytes = 0.0
        policy.reset(table, seed)
        if prefetcher is not None:
            prefetcher.reset(table, seed)

    def resident(self, units: Ids) -> NDArray[np.bool_]:
        """Which of `units` stand in HBM now (tiers 0 and 1), bool [units]."""
        return _in_hbm(self._where[units])

    def missing(self, units: Ids) -> Ids:
        """Those of `units` that are neither in HBM nor on their way there."""
        return units[(self._where[units] > HBM) & ~self._flying[units]]

    def pinned(self) -> int:
        """How many units stand in tier 0."""
        return int(np.count_nonzero(self._where == PINNED))

    # ── the tick ─────────────────────────────────────────────────────────────────────────────────

    def settle(self, tick: Tick, done: Sequence[Done]) -> tuple[Move, ...]:
        """Count acknowledgements and arrivals of backups and prefetches; return what must be issued again.

        A failed backup is issued again. A failed prefetch gives its room back.
        """
        again: list[Move] = []
        if done:
            self._leavers = None
        for answer in done:
            move = self.pending.pop(answer.move, None)
            if move is None:
                raise InvariantError(f"move {answer.move} was answered at {tick}, but it is not pending: answer each move once")
            alive = self.table.refs[move.units] > 0
            good, bad = move.units[answer.ok & alive], move.units[~answer.ok & alive]
            if move.why == "backup":
                self._acked[good] = True
                self._evictable[good] = _in_hbm(self._where[good]) & ~self._open[good]
                if len(bad):
                    again.append(self._move(bad, move.src, NVME, "backup"))
            else:
                self._flying[good] = self._flying[bad] = False
                self._where[good] = HBM
                self._evictable[good] = True
                self._early[bad] = False
                self.pools.add(bad, -1)
        return tuple(again)

    def append(self, tick: Tick, units: Ids) -> tuple[Move, ...]:
        """Take in new units: open ones are held in HBM; complete ones enter through staging, to be placed.

        Returns
        -------
        tuple of Move
            Evictions that made room, or the backup of complete units.

        Raises
        ------
        CapacityError
            If open units alone exceed a pool, or complete ones the staging line.
        """
        self._grow()
        self.policy.on_new(tick, units)
        if self.prefetcher is not None:
            self.prefetcher.on_new(tick, units)
        if self.table.sealed[units].all():
            if len(units) > self.staging_units:
                raise CapacityError(
                    f"{len(units)} complete units at {tick} exceed the staging line of {self.staging_units} units: "
                    "append fewer at a time, or raise staging_bytes"
                )
            self._where[units] = STAGE
            self._rounds = [units]
            return (self._move(units, STAGE, NVME, "backup"),)
        moves = self._make_room(tick, units)
        self._open[units] = True
        self._where[units] = HBM
        self.pools.add(units, 1)
        return moves

    def seal(self, tick: Tick, units: Ids) -> tuple[Move, ...]:
        """Units became full and confirmed: evictable once the returned backup is acknowledged."""
        self._open[units] = False
        return (self._move(units, HBM, NVME, "backup"),) if len(units) else ()

    def request(self, demand: Demand) -> Grant:
        """Judge hits once, fetch what is missing. Nothing asked for is dropped before it is attended.

        Parameters
        ----------
        demand : Demand
            Unique ascending units of one tick.

        Raises
        ------
        InvariantError
            If the last tick's rounds were not all placed, or a unit was never appended.
        """
        if any(map(len, self._rounds)):
            raise InvariantError(f"units are still staged at {demand.tick}: place() each round of the last tick first")
        self._grow()
        tick, units, asks = demand
        tier = self._where[units]
        if len(tier) and tier.min() < 0:
            raise InvariantError(f"unit {int(units[tier < 0][0])} is asked for at {tick} but was never appended")
        hit = tier <= HBM
        self.policy.on_access(tick, units, asks)
        if self.prefetcher is None:
            return Grant(tier, _NONE, ((), *self._stage(units[~hit], tier[~hit])), np.zeros(len(units), np.bool_))
        self.prefetcher.on_access(tick, units, asks)
        flying = self._flying[units]
        early = self._early[units] & hit
        self._early[units[hit | flying]] = False
        fetch = ~(hit | flying)
        return Grant(tier, units[flying], ((), *self._stage(units[fetch], tier[fetch])), early)

    def observe(self, seen: Seen) -> None:
        """Pass on the mass of what was read; once a tick, before the last `place`."""
        self.policy.on_mass(seen)
        if self.prefetcher is not None:
            self.prefetcher.on_mass(seen)

    def place(self, tick: Tick, round: int) -> tuple[Move, ...]:
        """After `round` was attended: keep the best of resident and that round's staged units.

        Not keeping what was just read is normal (bypass). Returns the moves: keep, demote, drop.
        """
        staged = self._rounds[round] if round < len(self._rounds) else _NONE
        if len(staged) == 0:
            return ()
        if not self._acked[staged].all():
            raise InvariantError(f"staged units at {tick} have no acknowledged backup yet: settle it before place() (law 4)")
        self._rounds[round] = _NONE
        residents = self._may_leave(tick.layer)
        candidates = np.concatenate([residents, staged])
        room = self.pools.capacity - self.pools.used + self.pools.count(residents)
        stay = self.pools.keep(candidates, self._keys(tick, candidates, len(residents)), room, self.seed, tick)
        keep = stay[len(residents) :]
        moves = self._leave(tick, residents[~stay[: len(residents)]], staged[~keep & (self._where[staged] != DRAM)])
        kept = staged[keep]
        if len(kept):
            self.pools.add(kept, 1)
            self._where[kept] = HBM
            self._evictable[kept] = True
            self._early[kept] = False
            if np.isfinite(self.policy.pinned_from):
                self._where[kept[self.policy.keep_key(tick, kept) >= self.policy.pinned_from]] = PINNED
            moves.append(self._move(kept, STAGE, HBM, "keep"))
        self._leavers = candidates[stay] if self.pools.kind == "global" else None
        return tuple(moves)

    def prefetch(self, tick: Tick, ahead: Ids) -> tuple[Move, ...]:
        """Bring what the prefetcher wants among `ahead`, within the tick's share; the lowest keys leave, but no pins.

        Parameters
        ----------
        tick : Tick
            Now, after its last `place`.
        ahead : int32
            Units that may be asked for next: those of the next layer, or of all layers at a step's end.
        """
        if self.prefetcher is None:
            return ()
        self._credit_bytes += self.budget.prefetch_bytes_per_tick
        allowed = int(self._credit_bytes // self.table.unit_bytes)
        self._credit_bytes -= allowed * self.table.unit_bytes
        candidates = self.missing(ahead)
        if allowed < 1 or len(candidates) == 0:
            return ()
        wanted = self.prefetcher.propose(tick, candidates, allowed)[:allowed]
        evictable = self.pools.count(np.flatnonzero(self._evictable & (self._where != PINNED)).astype(np.int32))
        wanted = wanted[self.pools.admissible(wanted, self.pools.capacity - self.pools.used + evictable)]
        if len(wanted) == 0:
            return ()
        moves = list(self._make_room(tick, wanted))
        self.pools.add(wanted, 1)
        self._flying[wanted] = self._early[wanted] = True
        sources = self._where[wanted]
        moves.extend(self._move(wanted[sources == src], int(src), HBM, "prefetch") for src in np.unique(sources))
        return tuple(moves)

    def release(self, units: Ids) -> tuple[Move, ...]:
        """Forget freed units; return the drop of those that were in HBM."""
        self._leavers = None
        resident = self.resident(units)
        self.pools.add(units[resident | self._flying[units]], -1)
        self._where[units] = _ABSENT
        for name in _FLAGS:
            getattr(self, name)[units] = False
        self.policy.on_gone(units, freed=True)
        return (self._move(units[resident], HBM, STAGE, "drop"),) if resident.any() else ()

    def check(self) -> None:
        """Raise `InvariantError` if law 4 or 6 is broken or the page table contradicts itself."""
        where = self._where
        resident = _in_hbm(where)
        held = np.flatnonzero(resident | self._flying).astype(np.int32)
        lost = np.flatnonzero((where >= DRAM) & ~self._acked)
        broken = {
            "a pool's count differs from its resident and in-flight units": (self.pools.count(held) != self.pools.used).any(),
            "a pool holds more than its payload (law 6)": (self.pools.used > self.pools.capacity).any(),
            "more units are staged than the staging line allows (law 6)": any(len(r) > self.staging_units for r in self._rounds),
            "tier 2 holds more than its payload (law 6)": np.count_nonzero(where == DRAM) > self._dram_units,
            f"units {lost[:3]} left HBM without an acknowledged backup (law 4)": len(lost) > 0,
            "an open unit is not in HBM": (self._open & ~resident).any(),
            "a resident unit is also in flight": (resident & self._flying).any(),
            "the evictable units differ from the page table": (self._evictable != (resident & self._acked & ~self._open)).any(),
        }
        for law, is_broken in broken.items():
            if is_broken:
                raise InvariantError(law)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _grow(self) -> None:
        more = self.table.size - len(self._where)
        if more <= 0:
            return
        self._where = np.concatenate([self._where, np.full(more, _ABSENT)])
        for name in _FLAGS:
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more, np.bool_)]))
        self.pools.grow()

    def _move(self, units: Ids, src: int, dst: int, why: str) -> Move:
        move, self._next_move = Move(self._next_move, units, src, dst, why), self._next_move + 1
        if why in ("backup", "prefetch"):
            self.pending[move.id] = move
        return move

    def _stage(self, misses: Ids, tier: NDArray[np.int8]) -> list[tuple[Move, ...]]:
        """Split misses into rounds that fit the staging line; one move per source tier and round."""
        self._rounds = [_NONE]
        if len(misses) and self.staging_units < 1:
            raise CapacityError(f"{len(misses)} units must be fetched, but the staging line holds none: raise staging_bytes")
        rounds = []
        for a, b in pairwise([*range(0, len(misses), max(self.staging_units, 1)), len(misses)]):
            part, source = misses[a:b], tier[a:b]
            self._rounds.append(part)
            tiers = (DRAM, NVME) if self._dram_units else ()
            by_tier = [(number, part[source == number]) for number in tiers] or [(NVME, part)]
            rounds.append(tuple(self._move(units, number, STAGE, "demand") for number, units in by_tier if len(units)))
        return rounds

    def _may_leave(self, layer: int) -> Ids:
        """Evictable units of the pools that `layer` touches, in any order."""
        scope = self.pools.scope(layer)
        if scope is not None:
            return scope[self._evictable[scope]]
        if self._leavers is None:
            self._leavers = np.flatnonzero(self._evictable).astype(np.int32)
        return self._leavers

    def _keys(self, tick: Tick, units: Ids, resident: int) -> NDArray[np.float64]:
        """Keys of `units`, the first `resident` of which are resident and get the keep bonus."""
        keys = self.policy.keep_key(tick, units)
        if self.policy.keep_bonus:  # among pins, being there is no merit
            keys[:resident] += self.policy.keep_bonus * (keys[:resident] < PIN / 8)
        return keys

    def _make_room(self, tick: Tick, units: Ids) -> tuple[Move, ...]:
        """Evict the lowest keys until `units` fit their pools."""
        over = self.pools.used + self.pools.count(units) - self.pools.capacity
        if (over <= 0).all():
            return ()
        layers = self.table.layer[units]
        residents = self._may_leave(int(layers[0]) if (layers == layers[0]).all() else ALL_LAYERS)
        residents = residents[over[self.pools.of(residents)] > 0]
        room = self.pools.count(residents) - np.maximum(over, 0)
        if (room < 0).any():
            raise CapacityError(
                f"a {self.pools.kind} pool of {int(self.pools.capacity.min())} units cannot hold its open and unconfirmed units "
                f"at {tick}: give it at least {int(-room.min())} units more"
            )
        stay = self.pools.keep(residents, self._keys(tick, residents, len(residents)), room, self.seed, tick)
        return tuple(self._leave(tick, residents[~stay], _NONE))

    def _leave(self, tick: Tick, evicted: Ids, bypassed: Ids) -> list[Move]:
        """Send evicted units down; with a tier 2, it keeps the best of its own and what is offered."""
        moves: list[Move] = []
        if len(evicted):
            self._leavers = None
            self.pools.add(evicted, -1)
            self._early[evicted] = self._evictable[evicted] = False
            self.policy.on_gone(evicted, freed=False)
        self._where[evicted] = self._where[bypassed] = NVME
        if self._dram_units and len(evicted) + len(bypassed):
            own = np.flatnonzero(self._where == DRAM).astype(np.int32)
            candidates = np.concatenate([own, evicted, bypassed])
            stay = best(self._keys(tick, candidates, len(own)), candidates, self._dram_units, self.seed, tick.step)
            self._where[candidates] = np.where(stay, DRAM, NVME)
            for n, end, src in ((len(own), len(own) + len(evicted), HBM), (len(own) + len(evicted), len(candidates), STAGE)):
                if stay[n:end].any():
                    moves.append(self._move(candidates[n:end][stay[n:end]], src, DRAM, "demote"))
            dropped = candidates[: len(own)][~stay[: len(own)]]
            if len(dropped):
                moves.append(self._move(dropped, DRAM, NVME, "drop"))
            evicted = evicted[self._where[evicted] == NVME]
        if len(evicted):
            moves.append(self._move(evicted, HBM, NVME, "drop"))
        return moves


def _in_hbm(where: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Tier 0 or 1; one comparison, since negative places wrap to large unsigned numbers."""
    return where.view(np.uint8) <= HBM
