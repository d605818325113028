"""Arenas of fixed size: their sizes, that they hold, and what is refused."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.driving import logged, small_stream

from kvpager.errors import BadInput
from kvpager.policies import make_policy
from kvpager.policies.wrappers.split import _shares


@settings(max_examples=100, deadline=None)
@given(asked=st.lists(st.integers(0, 50), min_size=1, max_size=12), room=st.integers(0, 200))
def test_shares_are_in_proportion_and_use_all_room(asked, room):
    shares = _shares(np.array(asked), room)
    exact = room * np.array(asked) / sum(asked) if sum(asked) else np.full(len(asked), room / len(asked))
    assert shares.sum() == room
    assert (abs(shares - exact) < 1).all()


@settings(max_examples=25, deadline=None)
@example(seed=1637, steps=6, capacity=24)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 6), capacity=st.integers(10, 24))
def test_each_head_holds_the_best_of_its_own_and_no_more_than_its_arena(seed, steps, capacity):
    """Checked against arenas counted from the demand itself; a head's own LRU would hold the same."""
    stream = small_stream(seed, 0.4)
    replay, log = logged(stream, f"lru+split:{steps}", capacity)
    width = replay.table.units_per_block
    asked = np.zeros(width, int)
    for ask in stream.asks:
        if ask.tick.step < steps:
            np.add.at(asked, ask.units % width, 1)
    arenas = _shares(asked, capacity - width)
    placed = False  # arenas are kept where something is placed, which only a miss makes happen
    for (tick, _, resident), ask in zip(log, stream.asks, strict=True):
        complete = np.array([u for u in resident if u // width < stream.recording.open_block(tick[0])], int)
        if ask.tick.step <= steps or (24 + ask.tick.step) % 4 < 2:  # a full block is held until its backup is acknowledged
            placed = False
            continue
        if placed:
            assert (np.bincount(complete % width, minlength=width) <= arenas).all()
        placed = placed or not set(ask.units.tolist()) <= set(resident)


def test_a_split_of_equal_heads_is_the_equal_pool():
    """Every head asks for as much, so the arenas are equal, and the hits are those of one pool a head."""
    stream = small_stream(1, 1.0, steps=4)  # no block turns after the first step
    split, _ = logged(stream, "access-ema+split:1", 16, warmup=2)
    equal, _ = logged(stream, "access-ema", 16, "equal", warmup=2)
    assert split.counts.hits == equal.counts.hits > 0


def test_a_pin_stays_whatever_its_arena_holds():
    stream = small_stream(2, 0.4)
    _replay, log = logged(stream, "lru+sink:4+split:2", 9)
    seen = {unit for ask in stream.asks for unit in ask.units.tolist() if unit < 4}
    assert len(seen & set(log[-1][2])) >= 1


@pytest.mark.parametrize("text", ["lru+split:0", "lru+split:x"])
def test_impossible_settings_are_refused(text):
    with pytest.raises(BadInput):
        make_policy(text)


@pytest.mark.parametrize("pool", ["layer", "equal"])
def test_only_a_global_pool_is_cut(pool):
    with pytest.raises(BadInput, match="global"):
        logged(small_stream(), "lru+split:2", 32, pool)
