"""The Pager on its own: rounds, flights, failures, forks, and a check that can fail."""

import numpy as np
import pytest

from kvpager.core import DRAM, HBM, NVME, RECOMPUTE, STAGE, Budget, Demand, Done, Seen, Tick, UnitTable
from kvpager.errors import BadInput, CapacityError, InvariantError
from kvpager.pager import Pager
from kvpager.policies import make_policy
from kvpager.pool import Pools, best, tie_hash
from kvpager.prefetch import Prefetcher
from tests.slow import slow_hash

SIZE = 64


class Wish(Prefetcher):
    """Wants what it is told, in that order."""

    def __init__(self, *units):
        self.units = np.array(units, np.int32)

    def propose(self, tick, candidates, max_units):
        return self.units[np.isin(self.units, candidates)][:max_units]


def make(hbm, staging, *, blocks=8, dram=0, policy="lru", prefetcher=None, pool="global", prefetch_units=0):
    """One layer, one head, `blocks` complete blocks, all in the backing store and as many in HBM as fit."""
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), blocks)
    table.seal(units)
    budget = Budget((0, hbm * SIZE, dram * SIZE, 10**9), 0, staging * SIZE, prefetch_units * SIZE)
    pager = Pager(table, budget, make_policy(policy), prefetcher, pool=pool)
    for start in range(0, blocks, staging):
        part = units[start : start + staging]
        answer(pager, pager.admit(Tick(-blocks + start, 0), part)[0])
        pager.place(Tick(-blocks + start, 0), 0)
    pager.check()
    return table, pager


def answer(pager, moves, ok=True):
    done = [Done(m.id, np.full(len(m.units), ok), len(m.units) * SIZE) for m in moves if m.id in pager.pending]
    return pager.settle(Tick(0, 0), done)


def ask(pager, step, *units):
    units = np.array(units, np.int32)
    return pager.request(Demand(Tick(step, 0), units, np.ones(len(units), np.int32)))


def residents(pager, table):
    units = np.arange(table.size, dtype=np.int32)
    return units[pager.resident(units)].tolist()


def test_a_demand_larger_than_staging_comes_in_rounds():
    table, pager = make(hbm=2, staging=3)
    assert residents(pager, table) == [6, 7]
    grant = ask(pager, 0, *range(8))
    assert grant.tier.tolist() == [NVME] * 6 + [HBM] * 2
    assert [[move.units.tolist() for move in moves] for moves in grant.rounds] == [[], [[0, 1, 2]], [[3, 4, 5]]]
    for number, moves in enumerate(grant.rounds):
        assert all(move.src == NVME and move.dst == STAGE and move.why == "demand" for move in moves)
        pager.place(Tick(0, 0), number)
        pager.check()
    assert len(residents(pager, table)) == 2


def test_every_round_must_be_placed_before_the_next_demand():
    _, pager = make(hbm=2, staging=3)
    ask(pager, 0, 0, 1)
    with pytest.raises(InvariantError, match="still staged"):
        ask(pager, 1, 2)


def test_nothing_asked_for_is_dropped_before_it_was_placed():
    table, pager = make(hbm=2, staging=4)
    grant = ask(pager, 0, 0, 6, 7)
    assert grant.tier.tolist() == [NVME, HBM, HBM]
    assert {6, 7} <= set(residents(pager, table))


def test_a_unit_in_flight_is_late_and_is_not_read_twice():
    table, pager = make(hbm=4, staging=4, prefetcher=Wish(0, 1), prefetch_units=2)
    (drop, flight) = pager.prefetch(Tick(0, 0), np.arange(8, dtype=np.int32))
    assert (drop.why, flight.why, flight.units.tolist()) == ("drop", "prefetch", [0, 1])
    pager.check()
    grant = ask(pager, 1, 0, 2)
    assert grant.late.tolist() == [0]
    assert grant.tier.tolist() == [NVME, NVME]  # a miss of its source tier
    assert [m.units.tolist() for moves in grant.rounds for m in moves] == [[2]]
    pager.place(Tick(1, 0), 1)
    answer(pager, [flight])
    pager.check()
    assert {0, 1} <= set(residents(pager, table))
    grant = ask(pager, 2, 0, 1)
    assert grant.early.tolist() == [False, True]  # 0 was joined late: its flight has been used


def test_a_failed_prefetch_gives_its_room_back():
    table, pager = make(hbm=4, staging=4, prefetcher=Wish(0, 1), prefetch_units=2)
    moves = pager.prefetch(Tick(0, 0), np.arange(8, dtype=np.int32))
    answer(pager, moves, ok=False)
    pager.check()
    assert residents(pager, table) == [6, 7]
    assert int(pager.pools.used.sum()) == 2
    assert ask(pager, 1, 0).tier.tolist() == [NVME]


def test_a_failed_backup_is_issued_again_and_the_unit_stays():
    table, pager = make(hbm=2, staging=4)
    block = table.open(0, 8)
    pager.append(Tick(0, 0), block)
    table.seal(block)
    moves = pager.seal(Tick(4, 0), block)
    again = answer(pager, moves, ok=False)
    assert [move.why for move in again] == ["backup"]
    grant = ask(pager, 5, *range(4))
    pager.place(Tick(5, 0), 1)
    pager.check()
    assert grant.tier.tolist() == [NVME] * 4
    assert 8 in residents(pager, table)  # law 4: no acknowledged copy, no leaving
    answer(pager, again)
    ask(pager, 6, *range(4))
    pager.place(Tick(6, 0), 1)
    assert 8 not in residents(pager, table)


def test_staged_units_without_a_copy_cannot_be_placed():
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), 2)
    table.seal(units)
    pager = Pager(table, Budget((0, SIZE, 0, 10**6), 0, 4 * SIZE), make_policy("lru"))
    pager.admit(Tick(-1, 0), units)
    with pytest.raises(InvariantError, match="law 4"):
        pager.place(Tick(-1, 0), 0)


def test_open_units_that_do_not_fit_are_refused():
    table, pager = make(hbm=1, staging=4)
    pager.append(Tick(0, 0), table.open(0, 8))
    with pytest.raises(CapacityError, match="at least 1 units more"):
        pager.append(Tick(1, 0), table.open(0, 9))


def test_a_prefill_larger_than_staging_comes_in_rounds():
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), 5)
    table.seal(units)
    pager = Pager(table, Budget((0, 3 * SIZE, 0, 10**6), 0, 4 * SIZE), make_policy("lru"), lanes=2)
    rounds = pager.admit(Tick(-1, 0), units)
    assert [[len(move.units) for move in moves] for moves in rounds] == [[2], [2], [1]]
    for number, moves in enumerate(rounds):
        answer(pager, moves)
        pager.place(Tick(-1, 0), number)
        pager.check()
    assert residents(pager, table) == [2, 3, 4]


def test_without_a_staging_slot_nothing_complete_can_enter():
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), 1)
    table.seal(units)
    pager = Pager(table, Budget((0, SIZE, 0, 10**6), 0, SIZE), make_policy("lru"), lanes=2)
    with pytest.raises(CapacityError, match="raise staging_bytes"):
        pager.admit(Tick(-1, 0), units)


def test_adopted_units_stand_in_the_backing_store():
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), 3)
    table.seal(units)
    pager = Pager(table, Budget((0, SIZE, 0, 10**6), 0, 4 * SIZE), make_policy("lru"))
    pager.adopt(Tick(-1, 0), units)
    pager.check()
    assert ask(pager, 0, 0, 2).tier.tolist() == [NVME, NVME]


def test_streaming_reads_all_and_moves_nothing():
    table, pager = make(hbm=2, staging=3)
    before = residents(pager, table)
    units = np.arange(8, dtype=np.int32)
    grant = pager.stream(Tick(0, 0), units)
    read = [unit for moves in grant.rounds for move in moves for unit in move.units.tolist()]
    assert sorted(read + before) == units.tolist()
    staged = [unit for number in range(len(grant.rounds)) for unit in pager.unstage(number).tolist()]
    assert staged == read
    pager.check()
    assert residents(pager, table) == before


def test_after_a_lost_unit_the_next_tick_can_start():
    _, pager = make(hbm=2, staging=8)
    ask(pager, 0, 0, 1)
    pager.abandon(np.array([1], np.int32))
    pager.check()
    grant = ask(pager, 1, 0, 1)
    assert grant.tier.tolist() == [NVME, RECOMPUTE]
    assert [move.units.tolist() for moves in grant.rounds for move in moves] == [[0]]


def test_what_was_never_appended_cannot_be_asked_for():
    table, pager = make(hbm=2, staging=4)
    table.open(0, 8)
    with pytest.raises(InvariantError, match="never appended"):
        ask(pager, 0, 8)


def test_tier_2_keeps_the_best_of_its_own_and_what_is_offered():
    table, pager = make(hbm=2, staging=8, dram=3)
    where = dict(enumerate(pager.pages.where.tolist()))
    assert {unit for unit, tier in where.items() if tier == DRAM} == {3, 4, 5}
    grant = ask(pager, 0, 0, 5)
    assert grant.tier.tolist() == [NVME, DRAM]
    moves = pager.place(Tick(0, 0), 1)
    pager.check()
    assert residents(pager, table) == [0, 5]
    assert {m.why for m in moves} == {"keep", "demote", "drop"}
    assert pager.pages.where[[6, 7]].tolist() == [DRAM, DRAM]


def test_freed_units_are_forgotten_everywhere():
    table, pager = make(hbm=3, staging=8, prefetcher=Wish(0), prefetch_units=1)
    moves = pager.prefetch(Tick(0, 0), np.arange(8, dtype=np.int32))
    dropped = pager.release(table.free(0))
    assert [m.why for m in dropped] == ["drop"]
    answer(pager, moves)  # the flight lands after its unit is gone
    pager.check()
    assert residents(pager, table) == []
    assert int(pager.pools.used.sum()) == 0


def test_a_fork_shares_units_and_its_copy_of_the_open_block_is_new():
    table, pager = make(hbm=4, staging=8)
    block = table.open(0, 8)
    pager.append(Tick(0, 0), block)
    twin = table.fork(0)
    copy = np.setdiff1d(np.arange(table.size, dtype=np.int32), np.arange(9, dtype=np.int32))
    pager.append(Tick(1, 0), copy)
    pager.check()
    gone = table.free(0)
    assert gone.tolist() == block.tolist()  # the shared blocks live on in the twin
    pager.release(gone)
    pager.check()
    assert table.blocks(twin)[:8] == list(range(8))


@pytest.mark.parametrize("plant", ["lost", "over", "open", "count", "evictable"])
def test_check_can_fail(plant):
    _, pager = make(hbm=3, staging=4)
    if plant == "lost":
        pager.pages.acked[0] = False
    elif plant == "over":
        pager.pools.capacity[:] = 2
    elif plant == "open":
        pager.pages.open[0] = True
    elif plant == "count":
        pager.pools.used[0] -= 1
    else:
        pager.pages.evictable[7] = False
    with pytest.raises(InvariantError):
        pager.check()


def test_each_move_is_answered_once():
    _, pager = make(hbm=3, staging=4)
    with pytest.raises(InvariantError, match="not pending"):
        pager.settle(Tick(0, 0), [Done(10**6, np.ones(1, bool), SIZE)])


def test_thresholds_leave_room_empty_and_pins_stand_in_tier_0():
    table, pager = make(hbm=4, staging=8, policy="placement-cuts")
    for step in range(3):
        ask(pager, step, 2, 5)
        pager.observe(Seen(Tick(step, 0), np.array([2, 5], np.int32), np.array([0.9, 0.001], np.float16)))
        pager.place(Tick(step, 0), 1)
    assert pager.pinned() == 1  # 0.25 + 0.55 * 0.9 + 0.20 >= 0.6
    assert len(residents(pager, table)) <= 4


def test_best_is_exact_and_its_ties_are_hashed():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n, count = rng.integers(1, 12), int(rng.integers(0, 12))
        keys = rng.choice([-np.inf, 0.0, 1.0, 2.0], n)
        units = rng.permutation(100)[:n].astype(np.int32)
        ranked = sorted(
            (-key, slow_hash(int(unit), 7, 3), i) for i, (key, unit) in enumerate(zip(keys, units, strict=True)) if key > -np.inf
        )
        assert np.flatnonzero(best(keys, units, count, 7, 3)).tolist() == sorted(i for *_, i in ranked[:count])


def test_the_tie_hash_is_splitmix64():
    units = np.array([0, 1, 12345], np.int32)
    assert tie_hash(units, 42, -3).tolist() == [slow_hash(unit, 42, -3) for unit in units.tolist()]


def test_pools_that_cannot_hold_a_unit_or_do_not_exist_are_refused():
    table = UnitTable(2, 2, 4, SIZE)
    with pytest.raises(CapacityError, match="give at least 4 units"):
        Pools(table, "equal", 3)
    with pytest.raises(BadInput, match="choose among global, layer, equal"):
        Pools(table, "globl", 3)
