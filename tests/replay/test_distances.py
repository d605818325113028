"""Depths against the caches that they describe."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.policies.requests.lru import Lru
from kvpager.policies.requests.prefix.lru import PrefixLru
from kvpager.replay.distances import NEVER, block_depths, hits_by_capacity, prefix_depths
from kvpager.replay.prefix import chained

CONTENTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=40)


def prompts(contents):
    """Chained blocks, where each request begins, and how many different ones there are."""
    starts = np.cumsum([0, *map(len, contents)])
    flat = np.array([block for one in contents for block in one], np.int32)
    nodes, distinct = chained(flat, starts, 3)
    return nodes, starts, distinct


@settings(max_examples=60)
@given(contents=CONTENTS, capacity=st.integers(1, 30))
def test_one_pass_tells_the_leading_hits_at_every_capacity(contents, capacity):
    nodes, starts, distinct = prompts(contents)
    depths = prefix_depths(nodes, starts, distinct)
    runs = np.zeros(len(contents), np.int32)
    PrefixLru().replay(nodes, starts, distinct, capacity, runs)
    for first, end, run in zip(starts, starts[1:], runs, strict=False):
        assert (np.diff(depths[first:end].astype(np.int64)) >= 0).all()
        assert int((depths[first:end] <= capacity).sum()) == run
    curve = hits_by_capacity(depths)
    assert curve[min(capacity, len(curve) - 1)] == runs.sum()


@settings(max_examples=50)
@given(blocks=st.lists(st.integers(0, 12), min_size=1, max_size=150), capacity=st.integers(1, 16))
def test_one_pass_tells_the_block_hits_at_every_capacity(blocks, capacity):
    ids = np.array(blocks, np.int32)
    hit = np.zeros(len(ids), np.bool_)
    Lru().replay(ids, 13, capacity, hit)
    depths = block_depths(ids, 13)
    assert np.array_equal(depths <= capacity, hit)
    assert int((depths == NEVER).sum()) == len(set(blocks))
    weights = np.arange(len(ids), dtype=np.int64)
    curve = hits_by_capacity(depths, weights)
    assert curve[min(capacity, len(curve) - 1)] == weights[hit].sum()
