"""The laws of the design that replay must obey, as properties of random streams."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import Scripted, logged, random_masks, small_recording, small_stream

from kvpager.core import DRAM, NVME
from kvpager.evidence import Evidence
from kvpager.policies import POLICIES, make_policy
from kvpager.policies.ema import EMA
from kvpager.prefetch import PREFETCHERS, Prefetcher
from kvpager.replay import stream as stream_module
from kvpager.replay.attention import Replay, capacity_units
from kvpager.replay.bounds import interval_bound
from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import Setting, make_stream
from kvpager.selectors.topp_mass import TopPMass

CAUSAL = sorted(name for name in POLICIES if not make_policy(name).needs & {"future", "unread_mass"})
pools = st.sampled_from(["global", "layer", "equal"])
seeds = st.integers(0, 10_000)


def roomy(pool, each):
    """A capacity that always holds the open units: 2 layers x 2 heads."""
    return {"global": 8 + each, "layer": 2 * (4 + each), "equal": 4 * (2 + each)}[pool]


# ── law 1: conservation ──────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(seed=seeds, policy=st.sampled_from(CAUSAL), pool=pools, each=st.integers(0, 8), dram=st.sampled_from([0, 5, 100]))
def test_each_access_is_served_once_and_the_tiers_counters_agree(seed, policy, pool, each, dram):
    stream = small_stream(seed)
    replay, log = logged(stream, policy, roomy(pool, each), pool, dram_units=dram, prefetcher="previous" if seed % 2 else None)
    counts, tiers = replay.counts, replay.driver.tiers
    asked = sum(len(ask.units) for ask in stream.asks)
    assert counts.served.sum() == counts.accesses == asked
    assert counts.served[:2].sum() == counts.hits == sum(len(hits) for _, hits, _ in log)
    for tier in (DRAM, NVME):
        assert tiers[tier].read_units.get("demand", 0) == counts.served[tier]
    prefetched = sum(tiers[tier].read_units.get("prefetch", 0) for tier in (DRAM, NVME))
    assert prefetched == counts.prefetched
    assert counts.kept <= counts.fetched == asked - counts.hits
    # every unit that was sealed has exactly one copy in the backing store
    assert tiers[NVME].written_units["backup"] == np.count_nonzero(replay.table.sealed[: replay.table.size])


def test_ratios_of_a_row_add_up():
    stream = make_stream(small_recording(5, steps=20), TopPMass())
    row = run_case(stream, Case("blend", 0.5, dram_fraction=0.3))
    assert sum(row["per_tier"].values()) == row["accesses"]
    assert row["per_tier"]["hbm"] + row["per_tier"]["hbm_pinned"] == row["block_hits"]
    assert sum(row["misses"].values()) == row["accesses"] - row["block_hits"]


@pytest.mark.parametrize("clock", ["layer", "step"])
def test_spans_add_up_to_the_row(clock):
    """12 of 16 steps are counted; in spans of 5 the last two are left out."""
    stream = make_stream(small_recording(5, steps=16), TopPMass(), Setting(clock=clock))
    row = run_case(stream, Case("blend", 0.5, span_steps=4))
    spans = row["spans"]
    assert len(spans["accesses"]) == 3
    assert sum(spans["accesses"]) == row["accesses"]
    assert sum(spans["block_hits"]) == row["block_hits"]
    assert np.mean(spans["mass_hit_ratio"]) == pytest.approx(row["mass_hit_ratio"])
    rest = run_case(stream, Case("blend", 0.5, span_steps=5))["spans"]
    last = [ask for ask in stream.asks if ask.tick.step >= 14]
    assert len(rest["accesses"]) == 2
    assert sum(rest["accesses"]) == row["accesses"] - sum(int(ask.asks.sum()) for ask in last)


# ── law 2: Belady ────────────────────────────────────────────────────────────────────────────────────


def most_hits(stream, capacity, warmup):
    """Exhaustive search: the most counted hits of any causal or clairvoyant placement in one global pool.

    States are resident sets of complete units; from one tick to the next only resident or just demanded
    units may stay. Open units are forced and take their room.
    """
    header = stream.recording.header
    complete = header.context_tokens // header.block_size
    forced = len(header.layers) * stream.heads_per_layer
    units = range(complete * forced)
    room = capacity - forced
    states = {frozenset(chosen): 0 for k in range(room + 1) for chosen in combinations(units, k)}
    for ask in stream.asks:
        demanded = frozenset(ask.units.tolist())
        after: dict[frozenset, int] = {}
        for state, hits in states.items():
            hits += len(state & demanded) * (ask.tick.step >= warmup)
            candidates = sorted(state | demanded)
            for k in range(min(room, len(candidates)) + 1):
                for chosen in combinations(candidates, k):
                    key = frozenset(chosen)
                    after[key] = max(after.get(key, 0), hits)
        states = after
    return max(states.values())


@settings(max_examples=60, deadline=None)
@given(seed=seeds, room=st.integers(1, 3), warmup=st.integers(0, 2), density=st.sampled_from([0.2, 0.4, 0.6]))
def test_belady_equals_exhaustive_search(seed, room, warmup, density):
    stream = small_stream(seed, density, layers=2, heads=1, context=13, steps=3, block_size=4)
    replay, _ = logged(stream, "belady", 2 + room, warmup=warmup)
    assert replay.counts.hits == most_hits(stream, 2 + room, warmup)


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds, policy=st.sampled_from(CAUSAL), pool=pools, each=st.integers(0, 8), warmup=st.integers(0, 5), sink=st.booleans()
)
def test_no_policy_has_more_hits_than_belady(seed, policy, pool, each, warmup, sink):
    stream = small_stream(seed)
    pins = "+sink:6" if sink else ""
    best, _ = logged(stream, "belady" + pins, roomy(pool, each), pool, warmup=warmup)
    other, _ = logged(stream, policy + pins, roomy(pool, each), pool, warmup=warmup)
    assert other.counts.hits <= best.counts.hits


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    prefetcher=st.sampled_from(sorted(PREFETCHERS)),
    pool=pools,
    each=st.integers(0, 8),
    warmup=st.integers(0, 5),
    sink=st.booleans(),
)
def test_prefetch_gains_at_most_what_it_used(seed, prefetcher, pool, each, warmup, sink):
    stream = small_stream(seed)
    pins = "+sink:6" if sink else ""
    best, _ = logged(stream, "belady" + pins, roomy(pool, each), pool, warmup=warmup)
    other, _ = logged(stream, "ema" + pins, roomy(pool, each), pool, prefetcher=prefetcher, prefetch_share=0.3, warmup=warmup)
    assert other.counts.hits <= best.counts.hits + other.counts.prefetched_used


@settings(max_examples=40, deadline=None)
@given(seed=seeds, granularity=st.sampled_from(["head", "layer"]), pool=pools, each=st.integers(0, 6), warmup=st.integers(0, 5))
def test_the_interval_bound_holds_for_access_hits(seed, granularity, pool, each, warmup):
    stream = small_stream(seed, setting=Setting(granularity=granularity))
    capacity = roomy(pool, each) if granularity == "head" else roomy(pool, each) // 2
    bound = interval_bound(stream, capacity, pool, warmup)
    for policy in ("belady", "lru", "ema", "lfu"):
        replay, _ = logged(stream, policy, capacity, pool, warmup=warmup)
        assert replay.counts.hits <= bound * replay.counts.accesses + 1e-9


def test_the_interval_bound_is_close_to_belady():
    stream = make_stream(small_recording(3, layers=3, context=160, steps=40), TopPMass())
    for share in (0.1, 0.2, 0.4):
        capacity = capacity_units(stream, share, "global")
        best, _ = logged(stream, "belady", capacity, warmup=10)
        ratio = best.counts.hits / best.counts.accesses
        assert ratio <= interval_bound(stream, capacity, "global", 10) <= ratio + 0.02


# ── laws 4 and 6: nothing lost, budgets hold ─────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    policy=st.sampled_from(CAUSAL),
    pool=pools,
    each=st.integers(0, 8),
    prefetcher=st.sampled_from([None, *sorted(PREFETCHERS)]),
    clock=st.sampled_from(["layer", "step"]),
    granularity=st.sampled_from(["head", "layer"]),
)
def test_the_budget_holds_after_every_tick(seed, policy, pool, each, prefetcher, clock, granularity):
    """`logged` runs with check=True: laws 4 and 6 and the page table are verified after each tick."""
    stream = small_stream(seed, setting=Setting(granularity, clock))
    capacity = roomy(pool, each) + (8 if clock == "step" else 0)
    _, log = logged(stream, policy, capacity, pool, prefetcher=prefetcher, dram_units=6, prefetch_share=0.3)
    assert all(len(resident) <= capacity for _, _, resident in log)


# ── law 9: labels ────────────────────────────────────────────────────────────────────────────────────


def test_a_row_is_no_better_known_than_a_simulation():
    row = run_case(make_stream(small_recording(1, steps=12), TopPMass()), Case("ema", 0.5))
    assert row["evidence"] == min(Evidence.of(label) for label in row["labels"]).label == "simulated"


# ── law 11: no hidden information ────────────────────────────────────────────────────────────────────


def with_other_unread_mass(recording, masks, rng):
    """The same recording, but for the mass of complete blocks that are not read."""
    mass = recording.mass.copy()
    for step, row in enumerate(masks):
        blocks = recording.open_block(step)
        noise = rng.random((*mass.shape[1:3], blocks)).astype(np.float16)
        mass[step, :, :, :blocks] = np.where(row[:, :, :blocks], mass[step, :, :, :blocks], noise)
    return replace(recording, mass=mass)


def assert_blind_to_unread_mass(policy, seed, prefetcher=None):
    recording = small_recording(seed)
    rng = np.random.default_rng(seed)
    masks = random_masks(rng, recording, 0.35)
    variants = (recording, with_other_unread_mass(recording, masks, rng))
    logs = [logged(make_stream(variant, Scripted(masks)), policy, 14, prefetcher=prefetcher)[1] for variant in variants]
    assert logs[0] == logs[1]


def assert_blind_to_the_future(policy, seed, make_prefetcher=lambda stream: None, cut=7):
    """What happens up to a step, prefetches included, does not depend on what comes after it."""
    recording = small_recording(seed)
    masks = random_masks(np.random.default_rng(seed), recording, 0.35)
    other = [*masks[:cut], *random_masks(np.random.default_rng(seed + 1), recording, 0.35)[cut:]]
    past = []
    for told in (masks, other):
        stream = make_stream(recording, Scripted(told))
        replay, log = logged(stream, policy, 14, prefetcher=make_prefetcher(stream), prefetch_share=0.5)
        past.append(([entry for entry in log if entry[0][0] < cut], [entry for entry in replay.prefetches if entry[0][0] < cut]))
    assert past[0] == past[1]


@pytest.mark.parametrize("policy", CAUSAL)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_policies_see_neither_unread_mass_nor_the_future(policy, seed):
    assert_blind_to_unread_mass(policy, seed)
    assert_blind_to_the_future(policy, seed)


@pytest.mark.parametrize("prefetcher", sorted(PREFETCHERS))
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_prefetchers_see_neither_unread_mass_nor_the_future(prefetcher, seed):
    assert_blind_to_unread_mass("ema", seed, prefetcher)
    assert_blind_to_the_future("ema", seed, lambda stream: prefetcher)


def test_a_policy_that_peeks_at_the_future_is_caught():
    """Planted."""
    with pytest.raises(AssertionError):
        assert_blind_to_the_future("belady", 4)


def test_a_stream_that_leaks_unread_mass_is_caught(monkeypatch):
    """Planted: `read` handed out what only `all` may."""
    honest = stream_module._ask

    def leaky(recording, setting, tick, mask):
        return honest(recording, setting, tick, mask)._replace(
            seen=honest(recording, setting._replace(observe="all"), tick, mask).seen
        )

    monkeypatch.setattr(stream_module, "_ask", leaky)
    with pytest.raises(AssertionError):
        assert_blind_to_unread_mass("ema", 2)


def test_a_prefetcher_that_peeks_at_the_next_layer_is_caught():
    """Planted: the leak that once let 'history' beat a clairvoyant."""

    class Peeking(Prefetcher):
        when = "layer"

        def __init__(self, asks):
            self.next = {tuple(now.tick): after.units for now, after in pairwise(asks)}

        def propose(self, tick, candidates, max_units):
            return np.intersect1d(candidates, self.next.get(tuple(tick), []))[:max_units].astype(np.int32)

    with pytest.raises(AssertionError):
        assert_blind_to_the_future("ema", 9, lambda stream: Peeking(stream.asks))


def test_the_mass_of_everything_is_labelled():
    stream = make_stream(small_recording(2, steps=12), TopPMass(), Setting(observe="all"))
    assert run_case(stream, Case("ema", 0.5))["realisable"] is False
    assert run_case(make_stream(small_recording(2, steps=12), TopPMass()), Case("ema", 0.5))["realisable"] is True


# ── an off-by-one block, planted ─────────────────────────────────────────────────────────────────────


def test_the_open_block_is_never_an_access():
    stream = make_stream(small_recording(6), TopPMass())
    width = len(stream.recording.header.layers) * stream.heads_per_layer
    for ask in stream.asks:
        open_block = stream.recording.open_block(ask.tick.step)
        assert (ask.units // width < open_block).all()
        assert open_block in ask.seen.units // width


def test_persistence_decides_whether_scores_survive_eviction():
    stream = small_stream(11, 0.5)
    kept = logged(stream, EMA(persist_scores=True), 12)[1]
    lost = logged(stream, EMA(persist_scores=False), 12)[1]
    assert kept != lost


def test_a_replay_is_deterministic_and_its_seed_matters():
    stream = small_stream(1, 0.5)
    assert logged(stream, "lru", 12, seed=1)[1] == logged(stream, "lru", 12, seed=1)[1]
    assert logged(stream, "lru", 12, seed=1)[1] != logged(stream, "lru", 12, seed=2)[1]


def test_unread_mass_is_refused_where_no_live_run_has_it():
    class Greedy(EMA):
        needs = frozenset({"unread_mass"})

    with pytest.raises(ValueError, match="no live run"):
        Replay(small_stream(), Greedy(), 12)
