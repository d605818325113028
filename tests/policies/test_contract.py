"""What every policy keeps, however it ranks."""

import numpy as np
import pytest
from tests.driving import logged, small_stream

from kvpager.core import Seen, Tick, UnitTable
from kvpager.policies import PIN, POLICIES, make_policy

CAPACITY = 16


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_keys_are_one_number_a_unit_and_no_pins_by_accident(name):
    replay, log = logged(small_stream(2, 0.4), name, CAPACITY)
    units = np.arange(replay.table.size, dtype=np.int32)
    keys = replay.policy.keep_key(Tick(99, 0), units)
    assert keys.shape == units.shape
    assert keys.dtype == np.float64
    assert not np.isnan(keys).any()
    if replay.policy.pinned_from > PIN:
        assert (keys < PIN / 8).all(), "keys from PIN / 8 on are reserved for windows and pins"
    assert len(log) == len(replay.stream.asks)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_starts_afresh_when_it_is_reset(name):
    policy, stream = make_policy(name), small_stream(3, 0.4)
    assert logged(stream, policy, CAPACITY)[1] == logged(stream, policy, CAPACITY)[1]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_before_the_first_block_there_is_nothing_to_rank_and_nothing_breaks(name):
    policy, tick, none = make_policy(name), Tick(0, 0), np.empty(0, np.int32)
    policy.reset(UnitTable(2, 2, 4, 64), 0)
    if "future" in policy.needs:
        policy.set_future(none, np.empty(0, np.int64), none)
    policy.on_new(tick, none)
    policy.on_access(tick, none, none)
    policy.on_mass(Seen(tick, none, np.empty(0, np.float16)))
    assert policy.keep_key(tick, none).shape == (0,)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_pins_hold_under_every_policy(name):
    """Block 0 of each head stays from its first demand on; it is in tier 0, and a window of one block follows the newest."""
    replay, log = logged(small_stream(4, 0.4), f"{name}+sink:4", CAPACITY)
    seen: set[int] = set()
    for (_, _, resident), ask in zip(log, replay.stream.asks, strict=True):
        seen |= {unit for unit in ask.units.tolist() if unit < 4}
        assert seen <= set(resident)
    assert replay.pager.pinned() >= len(seen)


def test_a_window_keeps_the_newest_blocks():
    replay, log = logged(small_stream(5, 0.4), "random+recent:8", 20)
    width = replay.table.units_per_block
    for tick, _, resident in log:
        newest = replay.stream.recording.open_block(tick[0])
        complete = {u for u in resident if u // width == newest - 1}
        assert len(complete) == width, "the block before the open one is inside an 8-token window"


def test_one_key_for_all_heads_of_a_block():
    replay, _ = logged(small_stream(6, 0.4), "ema+max:all", CAPACITY)
    keys = replay.policy.keep_key(Tick(99, 0), np.arange(8, dtype=np.int32))
    assert len(set(keys[:4].tolist())) == len(set(keys[4:].tolist())) == 1
    mean, _ = logged(small_stream(6, 0.4), "ema+mean", CAPACITY)
    keys = mean.policy.keep_key(Tick(99, 0), np.arange(8, dtype=np.int32))
    inner = mean.policy.policy.keep_key(Tick(99, 0), np.arange(8, dtype=np.int32))
    assert keys == pytest.approx(inner.reshape(-1, 2).mean(axis=1).repeat(2))
