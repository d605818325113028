"""The loop's brain: which units are where, what is fetched, what is kept. Pure bookkeeping.

No tensors, no I/O, no clock: the same calls, of a replay or of a live cache, give the same answers. One tick, in order::

    settle   acknowledgements and arrivals of earlier moves count only here
    append   new open units, which cannot leave; `admit`: complete ones (prefill), which pass through staging
    seal     an open block became full and confirmed: its backup is issued
    request  hits are judged once; misses are fetched to staging, in rounds that fit it
    place    after all rounds but the last: keep the best of resident and staged
    observe  the attention mass of what was read
    place    after the last round, with this tick's mass known
    prefetch what the prefetcher wants for later, at most the tick's share
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvpager.core import (
    ALL_LAYERS,
    DRAM,
    HBM,
    NVME,
    PINNED,
    RECOMPUTE,
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
from kvpager.pagetable import ABSENT, PageTable, in_hbm
from kvpager.policies.base import PIN, Policy
from kvpager.pool import Pools, best
from kvpager.prefetch.base import Prefetcher

__all__ = ["Pager"]

_NONE = np.empty(0, np.int32)


class Pager:
    """Keeps the page table and obeys a policy within a budget.

    Parameters
    ----------
    table : UnitTable
        Identity of units; the driver opens and seals blocks in it.
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
    lanes : int
        Rounds that are staged at once: while one is attended, the next is read.

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
        lanes: int = 1,
    ) -> None:
        self.table, self.budget, self.policy, self.prefetcher = table, budget, policy, prefetcher
        self.seed, self.lanes, self._next_move, self._credit_bytes = seed, lanes, 0, 0.0
        self.pools = Pools(table, pool, (budget.payload_bytes[PINNED] + budget.payload_bytes[HBM]) // table.unit_bytes)
        self.staging_units = budget.staging_bytes // table.unit_bytes
        self._dram_units = budget.payload_bytes[DRAM] // table.unit_bytes
        self.pages = PageTable(table, self.pools)
        self._leavers: Ids | None = None  # all evictable units, where known
        self._rounds: list[Ids] = []
        self.pending: dict[int, Move] = {}
        policy.reset(table, seed)
        policy.set_pools(self.pools)
        if prefetcher is not None:
            prefetcher.reset(table, seed)

    def resident(self, units: Ids) -> NDArray[np.bool_]:
        """Which of `units` stand in HBM now (tiers 0 and 1), bool [units]."""
        return self.pages.resident(units)

    def missing(self, units: Ids) -> Ids:
        """Those of `units` that a lower tier holds and that are not on their way to HBM."""
        return units[(self.pages.where[units] > HBM) & (self.pages.where[units] < RECOMPUTE) & ~self.pages.flying[units]]

    def pinned(self) -> int:
        """How many units stand in tier 0."""
        return int(np.count_nonzero(self.pages.where == PINNED))

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
                self.pages.acked[good] = True
                self.pages.evictable[good] = self.pages.resident(good) & ~self.pages.open[good]
                if len(bad):
                    again.append(self._move(bad, move.src, NVME, "backup"))
            else:
                self.pages.flying[good] = self.pages.flying[bad] = self.pages.early[bad] = False
                self.pages.where[good] = HBM
                self.pages.evictable[good] = True
                self.pools.add(bad, -1)
        return tuple(again)

    def append(self, tick: Tick, units: Ids) -> tuple[Move, ...]:
        """Take in new open units: held in HBM until sealed and backed up. Returns the evictions that made room.

        Raises `CapacityError` if a pool cannot hold its open units.
        """
        self._announce(tick, units)
        moves = self._make_room(tick, units)
        self.pages.open[units] = True
        self.pages.where[units] = HBM
        self.pools.add(units, 1)
        return moves

    def admit(self, tick: Tick, units: Ids) -> tuple[tuple[Move, ...], ...]:
        """Take in new complete units, as a prefill makes them, through staging; return each round's backup.

        It must be acknowledged, by `settle`, before `place` may choose of that round.
        """
        self._announce(tick, units)
        self._rounds = self._split(units)
        return tuple((self._move(part, STAGE, NVME, "backup"),) for part in self._rounds)

    def adopt(self, tick: Tick, units: Ids) -> None:
        """Take in complete units that stand in tier 3 already, as a resumed session does."""
        self._announce(tick, units)
        self.pages.acked[units] = True
        self.pages.where[units] = NVME

    def stream(self, tick: Tick, units: Ids) -> Grant:
        """Read all of `units` without a word to the policy, and keep none: a prefill's dense reading is no preference."""
        return self._judge(tick, units)

    def unstage(self, round: int) -> Ids:
        """End a round of `stream`, and return the units whose staging slots are free again."""
        staged, self._rounds[round] = self._rounds[round], _NONE
        return staged

    def abandon(self, lost: Ids) -> None:
        """End a tick that cannot be finished: nothing stays staged, and `lost` units are known to have no copy left."""
        self._rounds, self._leavers = [], None
        self.pages.where[lost] = RECOMPUTE
        self.pages.acked[lost] = self.pages.evictable[lost] = False

    def seal(self, tick: Tick, units: Ids) -> tuple[Move, ...]:
        """Units became full and confirmed: evictable once the returned backup is acknowledged."""
        self.pages.open[units] = False
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
        tick, units, asks = demand
        self.pages.grow()
        grant = self._judge(tick, units)
        self.policy.on_access(tick, units, asks)
        if self.prefetcher is not None:
            self.prefetcher.on_access(tick, units, asks)
        return grant

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
        if not self.pages.acked[staged].all():
            raise InvariantError(f"staged units at {tick} have no acknowledged backup yet: settle it before place() (law 4)")
        self._rounds[round] = _NONE
        residents = self._may_leave(tick.layer)
        candidates = np.concatenate([residents, staged])
        room = self.pools.capacity - self.pools.used + self.pools.count(residents)
        stay = self.pools.keep(candidates, self._keys(tick, candidates, len(residents)), room, self.seed, tick)
        keep = stay[len(residents) :]
        moves = self._leave(tick, residents[~stay[: len(residents)]], staged[~keep & (self.pages.where[staged] != DRAM)])
        kept = staged[keep]
        if len(kept):
            self.pools.add(kept, 1)
            self.pages.where[kept] = HBM
            self.pages.evictable[kept] = True
            self.pages.early[kept] = False
            if np.isfinite(self.policy.pinned_from):
                self.pages.where[kept[self.policy.keep_key(tick, kept) >= self.policy.pinned_from]] = PINNED
            moves.append(self._move(kept, STAGE, HBM, "keep"))
        self._leavers = candidates[stay] if self.pools.kind == "global" else None
        return tuple(moves)

    def prefetch(self, tick: Tick, ahead: Ids) -> tuple[Move, ...]:
        """Bring what the prefetcher wants among `ahead`, within the tick's share; the lowest keys leave, but no pins.

        `ahead` are the units that may be asked for next: those of the next layer, or of all layers at a step's end.
        """
        if self.prefetcher is None:
            return ()
        whole, self._credit_bytes = divmod(self._credit_bytes + self.budget.prefetch_bytes_per_tick, self.table.unit_bytes)
        allowed = int(whole)
        candidates = self.missing(ahead)
        if allowed < 1 or len(candidates) == 0:
            return ()
        wanted = self.prefetcher.propose(tick, candidates, allowed)[:allowed]
        evictable = self.pools.count(np.flatnonzero(self.pages.evictable & (self.pages.where != PINNED)).astype(np.int32))
        wanted = wanted[self.pools.admissible(wanted, self.pools.capacity - self.pools.used + evictable)]
        if len(wanted) == 0:
            return ()
        moves = list(self._make_room(tick, wanted))
        self.pools.add(wanted, 1)
        self.pages.flying[wanted] = self.pages.early[wanted] = True
        sources = self.pages.where[wanted]
        moves.extend(self._move(wanted[sources == src], int(src), HBM, "prefetch") for src in np.unique(sources))
        return tuple(moves)

    def release(self, units: Ids) -> tuple[Move, ...]:
        """Forget freed units; return the drop of those that were in HBM."""
        self.pages.grow()
        units = units[self.pages.where[units] != ABSENT]
        self._leavers = None
        resident = self.resident(units)
        self.pools.add(units[resident | self.pages.flying[units]], -1)
        self.pages.forget(units)
        self.policy.on_gone(units, freed=True)
        return (self._move(units[resident], HBM, STAGE, "drop"),) if resident.any() else ()

    def check(self) -> None:
        """Raise `InvariantError` if law 4 or 6 is broken or the page table contradicts itself."""
        broken = self.pages.contradictions() | {
            "more units are staged than the staging line allows (law 6)": any(len(r) > self.staging_units for r in self._rounds),
            "tier 2 holds more than its payload (law 6)": np.count_nonzero(self.pages.where == DRAM) > self._dram_units,
        }
        for law in (law for law, is_broken in broken.items() if is_broken):
            raise InvariantError(law)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _announce(self, tick: Tick, units: Ids) -> None:
        self.pages.grow()
        self.policy.on_new(tick, units)
        if self.prefetcher is not None:
            self.prefetcher.on_new(tick, units)

    def _judge(self, tick: Tick, units: Ids) -> Grant:
        """Say where each unit stands, and stage those not in HBM."""
        if any(map(len, self._rounds)):
            raise InvariantError(f"units are still staged at {tick}: place() each round of the last tick first")
        tier = self.pages.where[units]
        hit, late, early = in_hbm(tier), _NONE, np.zeros(len(units), np.bool_)
        if not hit.all() and tier.min() < 0:
            raise InvariantError(f"unit {int(units[tier < 0][0])} is asked for at {tick} but was never appended")
        fetch = (tier == DRAM) | (tier == NVME)
        if self.prefetcher is not None:
            flying, early = self.pages.flying[units], self.pages.early[units] & hit
            self.pages.early[units[hit | flying]] = False
            fetch, late = fetch & ~flying, units[flying]
        return Grant(tier, late, ((), *self._stage(units[fetch], tier[fetch])), early)

    def _split(self, units: Ids) -> list[Ids]:
        """Cut `units` into rounds that fit their lane of the staging line."""
        lane = self.staging_units // self.lanes
        if len(units) and lane < 1:
            raise CapacityError(
                f"{len(units)} units must be staged, but the staging line of {self.staging_units} units holds none in each of "
                f"{self.lanes} lane(s): raise staging_bytes"
            )
        return [units[start : start + lane] for start in range(0, len(units), max(lane, 1))]

    def _move(self, units: Ids, src: int, dst: int, why: str) -> Move:
        move, self._next_move = Move(self._next_move, units, src, dst, why), self._next_move + 1
        if why in ("backup", "prefetch"):
            self.pending[move.id] = move
        return move

    def _stage(self, misses: Ids, tier: NDArray[np.int8]) -> list[tuple[Move, ...]]:
        """Split misses into rounds that fit the staging line; one move per source tier and round."""
        if len(misses) == 0:
            self._rounds = [_NONE]
            return []
        parts = self._split(misses)
        self._rounds = [_NONE, *parts]
        rounds, tiers = [], (DRAM, NVME) if self._dram_units else (NVME,)
        sources = np.split(tier, np.cumsum([len(part) for part in parts])[:-1])
        for part, source in zip(parts, sources, strict=True):
            by_tier = [(number, part[source == number]) for number in tiers]
            rounds.append(tuple(self._move(units, number, STAGE, "demand") for number, units in by_tier if len(units)))
        return rounds

    def _may_leave(self, layer: int) -> Ids:
        """Evictable units of the pools that `layer` touches, in any order."""
        scope = self.pools.scope(layer)
        if scope is not None:
            return scope[self.pages.evictable[scope]]
        if self._leavers is None:
            self._leavers = np.flatnonzero(self.pages.evictable).astype(np.int32)
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
            self.pages.early[evicted] = self.pages.evictable[evicted] = False
            self.policy.on_gone(evicted, freed=False)
        self.pages.where[evicted] = self.pages.where[bypassed] = NVME
        if self._dram_units and len(evicted) + len(bypassed):
            own = np.flatnonzero(self.pages.where == DRAM).astype(np.int32)
            candidates = np.concatenate([own, evicted, bypassed])
            keys = self._keys(tick, candidates, len(own))
            keys[: len(own)][np.isin(own, np.concatenate([_NONE, *self._rounds]))] = np.inf  # a later round reads it from here
            stay = best(keys, candidates, self._dram_units, self.seed, tick.step)
            self.pages.where[candidates] = np.where(stay, DRAM, NVME)
            dropped = candidates[: len(own)][~stay[: len(own)]]
            if len(dropped):  # first, so that tier 2 has room for what comes
                moves.append(self._move(dropped, DRAM, NVME, "drop"))
            for n, end, src in ((len(own), len(own) + len(evicted), HBM), (len(own) + len(evicted), len(candidates), STAGE)):
                if stay[n:end].any():
                    moves.append(self._move(candidates[n:end][stay[n:end]], src, DRAM, "demote"))
            evicted = evicted[self.pages.where[evicted] == NVME]
        if len(evicted):
            moves.append(self._move(evicted, HBM, NVME, "drop"))
        return moves
