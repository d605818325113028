"""Prefix caches against a slow reference, and depths against the caches that they describe."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.requests import slow

from kvpager.policies.requests.lru import Lru
from kvpager.replay.distances import NEVER, block_depths, hits_by_capacity, prefix_depths
from kvpager.replay.prefix import chained, fifo_runs, hit_tokens, lru_runs, optimal_runs

CONTENTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=40)
RULES = {"lru": lru_runs, "fifo": fifo_runs, "optimal": optimal_runs}


def prompts(contents):
    """Chained blocks, where each request begins, and how many different ones there are."""
    starts = np.cumsum([0, *map(len, contents)])
    flat = np.array([block for one in contents for block in one], np.int32)
    nodes, distinct = chained(flat, starts, 3)
    return nodes, starts, distinct


@given(contents=CONTENTS)
def test_an_id_tells_all_that_stands_before_it(contents):
    nodes, starts, distinct = prompts(contents)
    known = {}
    for one, first in zip(contents, starts, strict=False):
        for depth in range(len(one)):
            node = int(nodes[first + depth])
            assert known.setdefault(tuple(one[: depth + 1]), node) == node
    assert sorted(known.values()) == list(range(distinct))


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60)
@given(contents=CONTENTS, capacity=st.integers(0, 14))
def test_leading_hits_are_those_of_the_slow_reference(rule, contents, capacity):
    nodes, starts, distinct = prompts(contents)
    requests = [nodes[first:end].tolist() for first, end in itertools.pairwise(starts)]
    expected = slow.prefix(requests, capacity, rule) if capacity else [0] * len(requests)
    assert RULES[rule](nodes, starts, distinct, capacity).tolist() == expected


@settings(max_examples=60)
@given(contents=CONTENTS, capacity=st.integers(1, 30))
def test_one_pass_tells_the_leading_hits_at_every_capacity(contents, capacity):
    nodes, starts, distinct = prompts(contents)
    depths = prefix_depths(nodes, starts, distinct)
    runs = lru_runs(nodes, starts, distinct, capacity)
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


def test_tokens_of_a_last_block_that_is_not_full():
    runs, starts = np.array([2, 1, 0], np.int32), np.array([0, 2, 5, 6])
    assert hit_tokens(runs, starts, np.array([700, 1500, 10]), 512).tolist() == [700, 512, 0]
