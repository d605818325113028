"""What compiled policies are made of, against Python's own: sets of numbers, queues, and two instructions."""

from collections import deque

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.policies.requests.bitset import add, bitset, discard, largest
from kvpager.policies.requests.machine import highest_bit, prefetch
from kvpager.policies.requests.queues import dequeue, enqueue, first, length, queue


@numba.njit
def new_set(numbers):
    return bitset(numbers)


@numba.njit
def do(bits, starts, number, there):
    if there:
        discard(bits, starts, number)
    else:
        add(bits, starts, number)


@numba.njit
def top(bits, starts):
    return largest(bits, starts)


@given(st.data(), st.sampled_from([1, 2, 63, 64, 65, 4096, 4097, 300_000]))
@settings(max_examples=150, deadline=None)
def test_a_bitset_is_a_set_and_knows_its_largest(data, numbers):
    bits, starts = new_set(numbers)
    expected = set()
    for number in data.draw(st.lists(st.integers(0, numbers - 1), max_size=60)):
        do(bits, starts, number, number in expected)
        expected ^= {number}
        if expected:
            assert top(bits, starts) == max(expected)
        assert bool(bits[-1]) == bool(expected)


@pytest.mark.parametrize("number", range(64))
def test_the_highest_bit_is_found(number):
    found = numba.njit(lambda word: highest_bit(word))
    assert found(np.uint64(1 << number)) == found(np.uint64((2 << number) - 1)) == number


def test_asking_early_changes_nothing_and_any_index_will_do():
    @numba.njit
    def ask(array):
        for index in (-(1 << 40), -1, 0, 7, 8, 1 << 40):
            prefetch(array, index)
        return array.sum()

    assert ask(np.arange(8, dtype=np.int32)) == 28


@numba.njit
def new_queue(most):
    return queue(most)


@numba.njit
def put(one, block):
    return enqueue(one, block)


@numba.njit
def get(one):
    return first(one), dequeue(one)


@numba.njit
def size(one):
    return length(one)


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=60))
@settings(max_examples=150, deadline=None)
def test_a_queue_is_first_in_first_out_and_places_are_kept(most, steps):
    mine, expected, places = new_queue(most), deque(), {}
    for block, entering in enumerate(steps):
        if entering and len(expected) < most:
            expected.append(block)
            places[block] = put(mine, block)
        elif not entering and expected:
            block = expected.popleft()
            assert get(mine) == (places[block], block)
        assert size(mine) == len(expected)
