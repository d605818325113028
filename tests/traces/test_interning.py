"""Ids become dense numbers in the order of their first appearance, whatever their values and however they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import first_seen

from kvpager.errors import CapacityError
from kvpager.traces import interning
from kvpager.traces.interning import Interner, intern

anything = st.lists(
    st.integers(0, 2**64 - 1) | st.integers(0, 5) | st.integers(0, 2**32 - 1).map(lambda i: i << 32), max_size=300
)


@given(anything)
def test_equal_to_the_plain_reference(ids):
    numbers, distinct = intern(np.array(ids, np.uint64))
    assert numbers.dtype == np.int32
    assert numbers.tolist() == first_seen(ids)
    assert distinct == len(set(ids))


@given(anything, st.integers(0, 300), st.sampled_from([1, 8, 1000]))
def test_piece_by_piece_is_the_same_as_at_once(ids, cut, expected):
    interner, array = Interner(expected), np.array(ids, np.uint64)
    numbers = [*interner.add(array[:cut]), *interner.add(array[cut:])]
    assert numbers == first_seen(ids)
    assert interner.distinct == len(set(ids))


@pytest.mark.parametrize("step", [1, 2**20, 2**44, 0x9E3779B97F4A7C15], ids=hex)
def test_the_table_grows_and_stays_right(step):
    ids = (np.arange(100_000, dtype=np.uint64) * np.uint64(step))[np.random.default_rng(0).integers(0, 100_000, 200_000)]
    numbers, distinct = intern(ids)
    assert distinct == len(np.unique(ids))
    values = np.empty(distinct, np.uint64)
    values[numbers] = ids
    assert (values[numbers] == ids).all()
    assert (np.diff(np.unique(numbers, return_index=True)[1]) > 0).all()


def test_more_distinct_ids_than_a_number_can_hold_are_refused(monkeypatch):
    monkeypatch.setattr(interning, "_MOST", 5)
    interner = Interner()
    interner.distinct = 5
    monkeypatch.setattr(interning, "_number", lambda ids, numbers, done, slots, distinct: (0, distinct))
    with pytest.raises(CapacityError, match="distinct block ids are the most"):
        interner.add(np.arange(6, dtype=np.uint64))
