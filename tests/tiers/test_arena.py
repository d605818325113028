"""The arena: slots in runs, each once; memory that is there from the start and goes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.errors import CapacityError, InvariantError
from kvpager.tiers.arena import Arena


def test_memory_is_zeroed_and_begins_on_a_page():
    arena = Arena(10, 512)
    assert arena.memory.shape == (10, 512)
    assert arena.memory.dtype == np.uint8
    assert arena.memory.flags.c_contiguous
    assert arena.memory.flags.writeable
    assert arena.memory.ctypes.data % 4096 == 0
    assert not arena.memory.any()
    arena.close()


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def test_memory_is_touched_beforehand_and_given_back():
    before = resident_bytes()
    arena = Arena(64, 1 << 20)
    made = resident_bytes()
    assert made - before > 60 << 20
    arena.close()
    assert made - resident_bytes() > 60 << 20


def test_closing_waits_for_those_who_still_look():
    arena = Arena(2, 4096)
    view = arena.memory[1]
    arena.close()
    view[:] = 7
    assert view.sum() == 7 * 4096


def test_private_memory_gets_huge_pages_where_the_system_gives_them():
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            offered = "[never]" not in file.read()
    except OSError:
        offered = False
    arena = Arena(32, 1 << 20)
    with open("/proc/self/smaps", encoding="ascii") as file:
        huge = sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages:"))
    assert huge > 0 or not offered
    arena.close()


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=40))
def test_each_slot_is_taken_once(steps):
    arena, taken = Arena(30, 512), set()
    for take, count in steps:
        if take and count > arena.free:
            with pytest.raises(InvariantError, match="free"):
                arena.take(count)
        elif take:
            free = set(range(30)) - taken
            slots = arena.take(count)
            assert slots.dtype == np.int32
            assert len(set(slots.tolist())) == count
            assert set(slots.tolist()) <= free
            runs = 1 + int(np.count_nonzero(np.diff(slots) != 1)) if count else 0
            possible = any(set(range(first, first + count)) <= free for first in range(30))
            assert runs <= 1 or not possible, "neighbours were there"
            taken |= set(slots.tolist())
        else:
            back = sorted(taken)[::2][:count]
            arena.give(np.array(back, np.int32))
            taken -= set(back)
        assert arena.free == 30 - len(taken)
    arena.close()


def test_the_longest_runs_come_first():
    arena = Arena(20, 512)
    arena.take(20)
    arena.give(np.array([1, 4, 5, 9, 10, 11, 12, 15], np.int32))
    assert arena.take(2).tolist() == [4, 5]  # the shortest run that holds them
    assert arena.take(5).tolist() == [9, 10, 11, 12, 1]


@pytest.mark.parametrize("slots", [[3], [0, 0], [25], [-1]])
def test_giving_back_what_is_not_taken_is_refused(slots):
    arena = Arena(20, 512)
    arena.take(2)
    with pytest.raises(InvariantError, match="given back"):
        arena.give(np.array(slots, np.int32))


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 512), (4, 0), (1 << 40, 1 << 30)])
def test_an_impossible_arena_is_refused(slots, slot_bytes):
    with pytest.raises(CapacityError, match="arena"):
        Arena(slots, slot_bytes)
