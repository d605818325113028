"""Law 8: the fast choice equals brute force, for every policy, pool and clock, on random streams."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import logged, small_stream
from tests.slow import KEYS, SlowReplay

from kvpager.policies import POLICIES
from kvpager.policies import scores as scores_module
from kvpager.replay.stream import Setting

POOL_SHARE = {"global": 1, "layer": 2, "equal": 4}


def assert_equals_brute_force(policy, seed, pool, each, *, clock="layer", density=0.35, context=24, sink=0):
    """Same hits at each tick, same residents after it."""
    stream = small_stream(seed, density, Setting(clock=clock), context=context)
    capacity = each * POOL_SHARE[pool]
    if pool == "global" or clock == "step":
        capacity += 4 * (2 if clock == "step" else 1)  # open units of every layer, and those not yet backed up
    else:
        capacity += 2 * 4 // POOL_SHARE[pool] * POOL_SHARE[pool]
    name = policy if not sink else f"{policy}+sink:{sink}"
    _, fast = logged(stream, name, capacity, pool, seed=seed)
    slow = SlowReplay(stream, policy, capacity, pool, seed=seed, sink_tokens=sink).run()
    assert fast == slow


def assert_all_seeds_equal_brute_force(policy):
    """Ten streams under one small global pool."""
    for seed in range(10):
        assert_equals_brute_force(policy, seed, "global", 3)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), "future-rate:ticks=5"])
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    pool=st.sampled_from(["global", "layer", "equal"]),
    each=st.integers(2, 6),
    clock=st.sampled_from(["layer", "step"]),
    context=st.sampled_from([24, 26]),
    sink=st.sampled_from([0, 0, 4, 9]),
)
def test_equals_brute_force(policy, seed, pool, each, clock, context, sink):
    known = {"belady", "next-mass", "future-rate", "future-rate:ticks=5", *KEYS}
    assert policy in known, f"policy {policy!r} has no slow reference: write its key in tests/slow.py"
    assert_equals_brute_force(policy, seed, pool, each, clock=clock, context=context, sink=sink)


def test_a_score_that_does_not_decay_is_caught(monkeypatch):
    """Planted: the classic stale key."""

    def stale(self, seen):
        weight = self._weight[seen.units]
        self.scores[seen.units] = weight * seen.mass + (1 - weight) * self.scores[seen.units]
        self._weight[seen.units] = self.alpha

    monkeypatch.setattr(scores_module.MassEMA, "on_mass", stale)
    with pytest.raises(AssertionError):
        assert_all_seeds_equal_brute_force("ema")


def test_a_choice_that_ignores_ties_by_hash_is_caught(monkeypatch):
    """Planted: ties broken by position."""
    import kvpager.pool

    monkeypatch.setattr(kvpager.pool, "tie_hash", lambda units, seed, step: units.astype(np.uint64))
    with pytest.raises(AssertionError):
        assert_all_seeds_equal_brute_force("lru")


def test_lazy_ema_equals_the_dense_one():
    """The lazy form s_k (1-alpha)^(t-k) of mission row 12."""
    from kvpager.core import Seen, Tick, UnitTable

    rng = np.random.default_rng(3)
    table = UnitTable(1, 1, 4, 64)
    table.open_many(table.new_sequence(), 6)
    ema = scores_module.MassEMA(table, 0.2)
    ema.on_new()
    last: dict[int, tuple[int, float]] = {}
    for step in range(60):
        units = np.flatnonzero(rng.random(6) < 0.3).astype(np.int32)
        mass = rng.random(len(units)).astype(np.float16)
        ema.on_mass(Seen(Tick(step, 0), units, mass))
        for unit, value in zip(units.tolist(), mass.tolist(), strict=True):
            if unit in last:
                k, score = last[unit]
                value = 0.2 * value + 0.8 * score * 0.8 ** (step - k - 1)
            last[unit] = (step, value)
        for unit, (k, score) in last.items():
            assert math.isclose(ema.scores[unit], score * 0.8 ** (step - k), rel_tol=1e-9)
