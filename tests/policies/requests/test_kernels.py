"""Compiled policies against slow references, and against other people's simulators."""

import libcachesim
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.requests import slow

from kvpager.errors import BadInput
from kvpager.policies.requests.base import REQUEST_POLICIES, checked
from kvpager.registry import configure

REFERENCES = {
    "fifo": slow.fifo, "lru": slow.lru, "lfu": slow.lfu, "sieve": slow.sieve, "arc": slow.arc, "s3fifo": slow.s3_fifo,
    "2q": slow.two_q, "ema": slow.ema, "wtinylfu": slow.w_tinylfu, "belady": slow.belady,
    "s3fifo:threshold=1,small=0.3": lambda blocks, capacity: slow.s3_fifo(blocks, capacity, 0.3, 1),
    "2q:queue=0.5,ghosts=2.0": lambda blocks, capacity: slow.two_q(blocks, capacity, 0.5, 2.0),
    "wtinylfu:window=0.3,protected=0.5,sample=3": lambda blocks, capacity: slow.w_tinylfu(blocks, capacity, 0.3, 0.5, 3),
}  # fmt: skip
ORACLES = {
    "fifo": libcachesim.FIFO, "lru": libcachesim.LRU, "arc": libcachesim.ARC, "s3fifo": libcachesim.S3FIFO,
    "sieve": libcachesim.Sieve, "belady": libcachesim.Belady,
}  # fmt: skip

TRACES = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=120),
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.integers(0, 40).map(lambda x: x * x // 40), min_size=1, max_size=200),
)


def flags(policy, blocks, capacity):
    distinct = max(blocks) + 1
    hit = np.ones(len(blocks), np.bool_)
    configure(REQUEST_POLICIES, policy).replay(checked(np.array(blocks), distinct, capacity), distinct, capacity, hit)
    return hit.tolist()


def test_every_policy_has_a_reference():
    assert set(REQUEST_POLICIES) <= set(REFERENCES)


@pytest.mark.parametrize("policy", REFERENCES)
@settings(max_examples=50)
@given(blocks=TRACES, capacity=st.integers(1, 24))
def test_each_access_hits_as_in_the_slow_reference(policy, blocks, capacity):
    assert flags(policy, blocks, capacity) == [bool(hit) for hit in REFERENCES[policy](blocks, capacity)]


@pytest.mark.parametrize("policy", REFERENCES)
@settings(max_examples=25)
@given(capacity=st.integers(2, 16), more=st.integers(1, 6), seed=st.integers(0, 99))
def test_loops_a_little_larger_than_the_cache_keep_ghosts_coming_back(policy, capacity, more, seed):
    random = np.random.default_rng(seed)
    blocks = np.tile(np.arange(capacity + more), 10)
    strays = random.random(len(blocks)) < 0.1
    blocks[strays] = random.integers(0, capacity + more, np.count_nonzero(strays))
    assert flags(policy, blocks, capacity) == [bool(hit) for hit in REFERENCES[policy](blocks.tolist(), capacity)]


@settings(max_examples=25)
@given(blocks=TRACES, capacity=st.integers(1, 24))
def test_no_policy_has_more_hits_than_belady(blocks, capacity):
    best = sum(flags("belady", blocks, capacity))
    assert all(sum(flags(policy, blocks, capacity)) <= best for policy in REFERENCES)


def theirs(oracle, blocks, capacity, path):
    """Hits that libcachesim counts."""
    again, last = np.full(len(blocks), np.iinfo(np.int64).max), {}
    for at in range(len(blocks) - 1, -1, -1):
        again[at] = last.get(blocks[at], np.iinfo(np.int64).max)
        last[blocks[at]] = at
    records = np.zeros(len(blocks), [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records["id"], records["size"], records["next"] = (
        np.array(blocks) + 1,
        1,
        np.where(again == np.iinfo(np.int64).max, -1, again),
    )
    records.tofile(path)
    reader = libcachesim.TraceReader(
        trace=str(path), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
    )  # fmt: skip
    missed, _ = oracle(cache_size=capacity).process_trace(reader)
    return round((1 - missed) * len(blocks))


@pytest.mark.parametrize("policy", ORACLES)
@pytest.mark.parametrize("seed", range(4))
def test_hits_equal_libcachesim(policy, seed, tmp_path):
    rng = np.random.default_rng(seed)
    ids = (rng.zipf(1.2, 20_000) % 3000 if seed % 2 else rng.integers(0, 900, 20_000)).tolist()
    for capacity in (20, 200):
        assert sum(flags(policy, ids, capacity)) == theirs(ORACLES[policy], ids, capacity, tmp_path / "trace.bin")


@pytest.mark.parametrize("policy", sorted(set(REFERENCES)))
def test_a_cache_of_everything_misses_each_block_once(policy):
    blocks = np.random.default_rng(0).integers(0, 50, 2000).tolist()
    hits = sum(flags(policy, blocks, 60))
    part_is_set_aside = policy.startswith(("2q", "s3fifo", "wtinylfu"))
    assert hits == 2000 - 50 or (part_is_set_aside and hits < 2000 - 50)


def test_impossible_accesses_are_refused():
    with pytest.raises(BadInput, match="number them from 0"):
        checked(np.array([0, 5]), 5, 1)
    with pytest.raises(BadInput, match="0 or more"):
        checked(np.array([0]), 1, -1)
    for text in ("s3fifo:small=1.5", "2q:queue=0", "ema:half_life=0", "wtinylfu:window=0"):
        with pytest.raises(BadInput, match="give"):
            configure(REQUEST_POLICIES, text)
