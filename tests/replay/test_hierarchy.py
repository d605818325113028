"""Tiers under recorded requests: equal to the slow reference, to one LRU stack, and to what was counted by hand."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.foreign import foreign_trace
from tests.prompts import NAMES, prompts, tiers_of
from tests.replay import slowhierarchy

from kvpager.errors import BadInput, CapacityError
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES
from kvpager.replay.distances import block_depths
from kvpager.replay.hierarchy import Hierarchy, TierSpec, replay_hierarchy
from kvpager.replay.hierarchyrow import row
from kvpager.replay.requests import Case, ceiling, replay_requests
from kvpager.testing.requests import GENERATORS, session_requests
from kvpager.traces.formats import load_requests


def found(trace, *tiers, block_bytes=None, warmup=0.0, **options):
    return row(replay_hierarchy(trace, Hierarchy(tiers, **options), block_bytes=block_bytes, warmup=warmup))


def written(tier):
    return tuple(tier["written_blocks"].values())  # new, demoted, promoted


def test_an_exclusive_hierarchy_counted_by_hand():
    got = found(prompts([[1], [2], [1], [3]]), *tiers_of(1, 1), mode="exclusive", block_bytes=10)
    top, below = got["tiers"]
    assert (top["block_hits"], below["block_hits"], got["recomputed_blocks"]) == (0, 1, 3)
    assert written(top) == (3, 0, 1)
    assert written(below) == (0, 3, 0)  # 1 for 2, 2 for 1, 1 for 3; 2 falls off
    assert (top["evicted_blocks"], below["evicted_blocks"], below["moved_up_blocks"]) == (3, 1, 1)
    assert (top["read_bytes"], below["read_bytes"], below["written_bytes"]["demoted"]) == (0, 10, 30)


def test_an_inclusive_hierarchy_counted_by_hand():
    asked = prompts([[1], [2], [1], [3], [3]])
    got = found(asked, *tiers_of(1, None))
    assert [tier["block_hits"] for tier in got["tiers"]] == [1, 1]
    assert [written(tier) for tier in got["tiers"]] == [(3, 0, 1), (3, 0, 0)]
    lazy = found(asked, *tiers_of(1, None), write_policy="demotion")
    assert [written(tier) for tier in lazy["tiers"]] == [(3, 0, 1), (0, 2, 0)]  # 1 leaves twice and is written once
    picky = found(asked, *tiers_of(1, None), write_policy="second-hit")
    assert [tier["block_hits"] for tier in picky["tiers"]] == [1, 0]
    assert [written(tier) for tier in picky["tiers"]] == [(4, 0, 0), (2, 0, 0)]  # 1 when made again, 3 when hit


def test_tokens_of_the_leading_run_go_to_the_tier_that_serves_them():
    got = found(prompts([[1, 2, 3], [1, 2], [1, 2, 3]]), *tiers_of(2, 9), mode="exclusive", semantics="prefix")
    assert [tier["prefix_hit_tokens"] for tier in got["tiers"]] == [7 + 8, 3]
    assert got["prefix_hit_tokens"] == 18
    assert got["whole_requests"] == 2


FEW = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)
SIZES = st.sampled_from([1, 2, 3, 4, 6, 9, 14, 0, None])


@st.composite
def many(draw):
    """Enough requests to fill and empty tiers, of a tree with popular branches."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [rng.choice(3, rng.integers(1, 6), p=(0.5, 0.3, 0.2)).tolist() for _ in range(draw(st.integers(20, 120)))]


@st.composite
def cases(draw):
    requests = draw(st.one_of(FEW, many(), many()))
    tenants = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(0, 3, len(requests))
    tiers = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(SIZES)
        quotas = draw(st.one_of(st.just({}), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 4), max_size=2)))
        if size is not None and sum(quotas.values()) > size:
            size = sum(quotas.values()) + draw(st.integers(0, 4))
        policy, promote = draw(st.sampled_from(["lru", "fifo"])), draw(st.booleans())
        tiers.append(TierSpec(f"tier {number}", size, None, policy, promote, quotas))
    mode = draw(st.sampled_from(["inclusive", "exclusive"]))
    write = draw(st.sampled_from(["through", "demotion", "second-hit"][mode == "exclusive" :]))
    semantics = draw(st.sampled_from(["block", "prefix"]))
    return prompts(requests, tenants), Hierarchy(tiers, mode, write, semantics, draw(st.booleans()))


def slowly(trace, hierarchy):
    rooms = [
        {None: 10**6 if tier.capacity_blocks is None else tier.capacity_blocks - sum(tier.quota_blocks.values())}
        | {NAMES.index(name): blocks for name, blocks in tier.quota_blocks.items()}
        for tier in hierarchy.tiers
    ]
    requests = [trace.blocks[a:b].tolist() for a, b in itertools.pairwise(trace.starts)]
    return slowhierarchy.replay(
        requests, trace.tenant.tolist(), rooms, [tier.policy == "lru" for tier in hierarchy.tiers],
        [tier.promote for tier in hierarchy.tiers], hierarchy.mode, hierarchy.written, hierarchy.semantics, hierarchy.separated,
    )  # fmt: skip


@settings(max_examples=500)
@given(case=cases())
def test_the_fast_replay_equals_the_slow_one(case):
    trace, hierarchy = case
    fast = replay_hierarchy(trace, hierarchy)
    served, counts, held = slowly(trace, hierarchy)
    assert fast.served.tolist() == served
    for tier, expected, blocks in zip(row(fast)["tiers"], counts, held, strict=True):
        assert tier["read_blocks"] == expected["read"]
        assert written(tier) == (expected["new"], expected["demoted"], expected["promoted"])
        assert tier["evicted_blocks"] == expected["evicted"]
        assert tier["moved_up_blocks"] == expected["moved up"]
        assert tier["held_blocks"] == blocks


@settings(max_examples=200)
@given(case=cases(), warmup=st.sampled_from([0.0, 0.4]))
def test_every_access_is_served_by_one_place_and_counts_add_up(case, warmup):
    trace, hierarchy = case
    got = row(replay_hierarchy(trace, hierarchy, warmup=warmup))
    hits = sum(tier["block_hits"] for tier in got["tiers"])
    assert hits == got["block_hits"] == got["accesses"] - got["recomputed_blocks"]
    assert got["recomputed_blocks"] == sum(got["misses"].values())
    assert sum(tier["prefix_hit_tokens"] for tier in got["tiers"]) == got["prefix_hit_tokens"]
    assert all(tier["read_blocks"] == tier["block_hits"] for tier in got["tiers"])
    for key in ("requests", "accesses", "block_hits", "input_tokens", "prefix_hit_tokens"):
        assert sum(tenant[key] for tenant in got["tenants"]) == got[key]
    for tenant in got["tenants"]:
        assert sum(tenant["hits_by_tier"].values()) == tenant["block_hits"]
    for key in ("block_hit_ratio", "prefix_token_hit_ratio", "request_hit_ratio"):
        assert got[key] <= got["ceiling"][key]
    for tier, spec in zip(got["tiers"], hierarchy.tiers, strict=True):
        assert spec.capacity_blocks is None or tier["held_blocks"] <= spec.capacity_blocks
        if not warmup:
            assert sum(written(tier)) == tier["evicted_blocks"] + tier["moved_up_blocks"] + tier["held_blocks"]
    json.dumps(got)


@settings(max_examples=60)
@given(
    contents=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25),
    capacity=st.integers(0, 12), mode=st.sampled_from(["inclusive", "exclusive"]), warmup=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_one_tier_is_the_cache_of_that_size(contents, capacity, mode, warmup):
    asked = prompts(contents)
    for policy, semantics in (("lru", "block"), ("fifo", "block"), ("lru", "prefix")):
        expected = replay_requests(
            asked, [Case(policy if semantics == "block" else f"prefix-{policy}", capacity)], warmup=warmup, optimum=False
        )[0]
        got = found(asked, TierSpec("only", capacity, policy=policy), mode=mode, semantics=semantics, warmup=warmup)
        assert expected == {key: got.get(key, value) for key, value in expected.items()}
        assert sum(written(got["tiers"][0])) == got["recomputed_blocks"] * (capacity > 0) or semantics == "prefix"


@settings(max_examples=100)
@given(contents=many(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_lru_tiers_are_one_stack(contents, sizes):
    """Exclusive ones cut it at the sums of their sizes; an inclusive store cuts it at its own, if that is the larger."""
    asked = prompts(contents)
    depths = block_depths(asked.blocks, asked.distinct)
    exclusive = replay_hierarchy(asked, Hierarchy(tiers_of(*sizes), "exclusive"))
    ends = np.cumsum(sizes)
    expected = np.searchsorted(ends, depths)
    assert exclusive.served.tolist() == np.where(expected < len(sizes), expected, -1).tolist()
    inclusive = replay_hierarchy(asked, Hierarchy(tiers_of(*sizes, int(ends[-1]) + 2), "inclusive"))
    expected = np.where(depths <= ends[-1], expected, np.where(depths <= ends[-1] + 2, len(sizes), -1))
    assert inclusive.served.tolist() == expected.tolist()


@pytest.mark.parametrize("capacity", [1, 7, 40, 200, 10**6])
def test_one_tier_under_prefix_semantics_is_the_leaf_lru(capacity):
    for make in GENERATORS.values():
        asked = make()
        runs = np.zeros(len(asked), np.int32)
        PREFIX_POLICIES["lru"]().replay(asked.blocks, asked.starts, asked.distinct, capacity, runs)
        depths = np.arange(len(asked.blocks)) - np.repeat(asked.starts[:-1], np.diff(asked.starts))
        for mode in ("inclusive", "exclusive"):
            got = replay_hierarchy(asked, Hierarchy(tiers_of(capacity), mode, semantics="prefix"))
            assert np.array_equal(got.served == 0, depths < np.repeat(runs, np.diff(asked.starts)))


@pytest.mark.parametrize("mode", ["inclusive", "exclusive"])
@pytest.mark.parametrize("semantics", ["block", "prefix"])
def test_a_tier_without_room_is_absent_and_one_above_the_distinct_blocks_is_the_ceiling(mode, semantics):
    asked = session_requests(60)
    whole = found(asked, *tiers_of(30, 100), mode=mode, semantics=semantics)
    for at in range(3):
        sizes = [30, 100]
        sizes.insert(at, 0)
        holed = found(asked, *tiers_of(*sizes), mode=mode, semantics=semantics)
        left = [tier | {"name": ""} for tier in holed["tiers"] if tier["capacity_blocks"]]
        assert left == [tier | {"name": ""} for tier in whole["tiers"]]
    above = ceiling(asked)
    for sizes in ((30, None), (30, 10**9), (asked.distinct, 0)):
        full = found(asked, *tiers_of(*sizes), mode=mode, semantics=semantics)
        assert (full["block_hits"], full["prefix_hit_tokens"]) == (above["block_hits"], above["prefix_hit_tokens"])
        assert full["misses"]["other"] == 0
    assert found(asked, *tiers_of(0, 0), mode=mode, semantics=semantics)["block_hits"] == 0


def test_a_complete_store_is_written_once_a_block_however_small_the_tiers_above():
    asked = session_requests(60)
    for sizes in ((5, None), (50, 20, None)):
        store = found(asked, *tiers_of(*sizes))["tiers"][-1]
        assert written(store) == (asked.distinct, 0, 0)
        lazy = found(asked, *tiers_of(*sizes), write_policy="demotion")["tiers"][-1]
        assert written(lazy)[0] == 0
        assert sum(written(lazy)) <= asked.distinct
        picky = found(asked, *tiers_of(*sizes), write_policy="second-hit")["tiers"][-1]
        again = np.bincount(asked.blocks) >= 2
        assert sum(written(picky)) == np.count_nonzero(again)


def test_without_promotion_a_block_is_read_where_it_stands():
    asked = prompts([[1], [2], [1], [1]])
    got = found(asked, TierSpec("top", 1), TierSpec("store", promote=False))
    assert [tier["block_hits"] for tier in got["tiers"]] == [0, 2]
    assert written(got["tiers"][0]) == (2, 0, 0)
    moved = found(asked, TierSpec("top", 1), TierSpec("store"))
    assert [tier["block_hits"] for tier in moved["tiers"]] == [1, 1]


@settings(max_examples=100)
@given(
    contents=many(), seed=st.integers(0, 2**32 - 1),
    mode=st.sampled_from(["inclusive", "exclusive"]), semantics=st.sampled_from(["block", "prefix"]),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=2),
)  # fmt: skip
def test_tenants_with_quotas_never_notice_each_other(contents, seed, mode, semantics, sizes):
    """What a tenant gets beside others is what it gets alone in tiers of its quota's size."""
    tenants = np.random.default_rng(seed).integers(0, 2, len(contents)).tolist()
    split = [TierSpec(f"{number}", size + 3, quota_blocks={"ann": size}) for number, size in enumerate(sizes)]
    together = replay_hierarchy(prompts(contents, tenants), Hierarchy(split, mode, semantics=semantics))
    asked = np.repeat(tenants, [len(content) for content in contents])
    for tenant, rooms in ((0, sizes), (1, [3, 3])):
        mine = [content for whose, content in zip(tenants, contents, strict=True) if whose == tenant]
        if mine:
            alone = replay_hierarchy(prompts(mine), Hierarchy(tiers_of(*rooms), mode, semantics=semantics))
            assert together.served[asked == tenant].tolist() == alone.served.tolist()


def test_with_quotas_equal_contents_of_two_tenants_are_two_blocks():
    asked = prompts([[1], [1], [1]], tenants=[0, 1, 1])
    assert found(asked, TierSpec("only", 4))["block_hits"] == 2
    assert found(asked, TierSpec("only", 4), separate_tenants=True)["block_hits"] == 1
    apart = found(asked, TierSpec("only", 4, quota_shares={"ann": 0.5}))
    assert apart["block_hits"] == 1
    assert not apart["tenants_share_blocks"]
    assert apart["tiers"][0]["quota_blocks"] == {"ann": 2}
    assert apart["ceiling"]["block_hit_ratio"] == pytest.approx(1 / 3)
    assert any("quota" in said for said in apart["assumed"])
    assert apart == found(asked, TierSpec("only", 4, quota_shares={"ann": 0.5}), separate_tenants=True)


def test_sizes_in_bytes_hold_whole_blocks():
    asked = session_requests(30)
    sized = found(asked, TierSpec("top", capacity_bytes=1099), TierSpec("store"), block_bytes=100)
    assert sized["tiers"][0]["capacity_blocks"] == 10
    assert sized["tiers"][0]["block_hits"] == found(asked, *tiers_of(10, None))["tiers"][0]["block_hits"]
    assert sized["tiers"][1]["written_bytes"]["new"] == 100 * asked.distinct


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TierSpec("a", -1), "'a' cannot hold -1: give 0 or more"),
        (lambda: TierSpec("a", capacity_bytes=-5), "'a' cannot hold -5"),
        (lambda: TierSpec("a", 1, 1), "in blocks and one in bytes"),
        (lambda: TierSpec("a", 1, policy="arc"), "choose lru or fifo"),
        (lambda: TierSpec("a", 1, quota_blocks={"ann": 1}, quota_shares={"ann": 1.0}), "in blocks and a share"),
        (lambda: Hierarchy([]), "0 tiers"),
        (lambda: Hierarchy([TierSpec("a"), TierSpec("a")]), "names a tier twice"),
        (lambda: Hierarchy([TierSpec("a")], "both"), "mode 'both' is unknown: choose inclusive or exclusive"),
        (lambda: Hierarchy([TierSpec("a")], write_policy="never"), "choose through or demotion or second-hit"),
        (lambda: Hierarchy([TierSpec("a")], semantics="token"), "choose block or prefix"),
        (lambda: Hierarchy([TierSpec("a")], "exclusive", "through"), "cannot write it through"),
    ],
)  # fmt: skip
def test_impossible_hierarchies_are_refused(make, message):
    with pytest.raises(BadInput, match=message):
        make()


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        (TierSpec("a", 5, quota_blocks={"ann": 6}), "quotas of 6 blocks exceed its 5"),
        (TierSpec("a", 5, quota_shares={"ann": 0.7, "bob": 0.4}), "shares add up to 1.1"),
        (TierSpec("a", 5, quota_blocks={"dan": 1}), "'dan', no tenant of this trace: its tenants are 'ann', 'bob'"),
        (TierSpec("a", 5, quota_blocks={"ann": -1}), "a quota of -1"),
        (TierSpec("a", quota_shares={"ann": 0.5}), "unbounded"),
        (TierSpec("a", capacity_bytes=100), "give block_bytes"),
    ],
)
def test_tiers_that_do_not_fit_the_trace_are_refused(tier, message):
    with pytest.raises(BadInput, match=message):
        found(prompts([[1]], tenants=[0]), tier)


def test_impossible_replays_are_refused():
    bare = dataclasses.replace(prompts([[1]]), blocks=np.zeros(0, np.int32), starts=np.array([0, 0]))
    with pytest.raises(BadInput, match="no blocks"):
        found(bare, TierSpec("a"))
    with pytest.raises(BadInput, match="leaves none"):
        found(prompts([[1]]), TierSpec("a"), warmup=1.0)
    with pytest.raises(BadInput, match="0 bytes"):
        found(prompts([[1]]), TierSpec("a"), block_bytes=0)


def test_a_replay_that_does_not_fit_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("kvpager.traces.room.free_memory_bytes", lambda: 24)
    with pytest.raises(CapacityError, match="a replay over tiers of request trace needs"):
        found(prompts([[1], [2]]), TierSpec("a"))


def test_a_public_trace_gives_the_known_hits_in_tiers():
    """Check table A of libCacheSim: 14,262 and 43,110 LRU hits in 1,638 and 6,553 blocks."""
    asked = load_requests(foreign_trace("mooncake_conversation_trace.jsonl.gz"))
    exclusive = found(asked, *tiers_of(1_638, 6_553 - 1_638), mode="exclusive")
    assert [tier["block_hits"] for tier in exclusive["tiers"]] == [14_262, 43_110 - 14_262]
    inclusive = found(asked, *tiers_of(1_638, 6_553))
    assert [tier["block_hits"] for tier in inclusive["tiers"]] == [14_262, 43_110 - 14_262]
