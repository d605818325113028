"""Policies of prefixes against a slow reference, and the optimum against all that a cache could do."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.requests import slow

from kvpager.errors import BadInput
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES
from kvpager.registry import configure
from kvpager.replay.prefix import chained

CONTENTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=40)
POLICIES = {
    "lru": lambda requests, capacity: slow.prefix(requests, capacity, "lru"),
    "fifo": lambda requests, capacity: slow.prefix(requests, capacity, "fifo"),
    "opt": lambda requests, capacity: slow.prefix(requests, capacity, "opt"),
    "ema": lambda requests, capacity: slow.prefix(requests, capacity, "ema"),
    "ema:half_life=0.25": lambda requests, capacity: slow.prefix(requests, capacity, "ema", 0.25),
    "ema:half_life=30": lambda requests, capacity: slow.prefix(requests, capacity, "ema", 30),
}


def prompts(contents):
    """Requests of chained blocks."""
    starts = np.cumsum([0, *map(len, contents)])
    nodes, _ = chained(np.array([block for one in contents for block in one], np.int32), starts, 3)
    return [nodes[first:end].tolist() for first, end in itertools.pairwise(starts)]


def runs_of(policy, requests, capacity):
    starts = np.cumsum([0, *map(len, requests)])
    blocks = np.array([block for request in requests for block in request], np.int32)
    runs = np.full(len(requests), -1, np.int32)
    configure(PREFIX_POLICIES, policy).replay(blocks, starts, int(blocks.max(initial=0)) + 1, capacity, runs)
    return runs.tolist()


def test_every_policy_has_a_reference():
    assert set(PREFIX_POLICIES) <= set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=100)
@given(contents=CONTENTS, capacity=st.integers(1, 14))
def test_leading_hits_are_those_of_the_slow_reference(policy, contents, capacity):
    requests = prompts(contents)
    assert runs_of(policy, requests, capacity) == POLICIES[policy](requests, capacity)


def most_hits(requests, capacity):
    """Most block hits of any cache, which may keep whatever it holds or was just asked for: exhaustive."""
    states = {frozenset(): 0}
    for request in requests:
        following = {}
        for held, hits in states.items():
            now = hits + len(held & set(request))
            for kept in itertools.combinations(sorted(held | set(request)), min(capacity, len(held | set(request)))):
                state = frozenset(kept)
                following[state] = max(following.get(state, 0), now)
        states = following
    return max(states.values())


@settings(max_examples=60)
@given(contents=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=7), capacity=st.integers(1, 4))
def test_no_cache_has_more_hits_than_the_optimum(contents, capacity):
    requests = prompts(contents)
    assert sum(runs_of("opt", requests, capacity)) == most_hits(requests, capacity)


@settings(max_examples=60)
@given(contents=CONTENTS, capacity=st.integers(1, 14))
def test_no_policy_has_more_hits_than_the_optimum(contents, capacity):
    requests = prompts(contents)
    best = sum(runs_of("opt", requests, capacity))
    assert all(sum(runs_of(policy, requests, capacity)) <= best for policy in POLICIES)


def test_a_popular_prefix_outlives_a_burst_that_lru_lets_push_it_out():
    popular, burst = [0, 1, 2], [[3 + 2 * i, 4 + 2 * i] for i in range(3)]
    requests = [popular] * 6 + burst + [popular]
    assert runs_of("ema", requests, 5)[-1] == 3
    assert runs_of("lru", requests, 5)[-1] == 0


@pytest.mark.parametrize("policy", ["lru", "ema", "opt"])
def test_what_is_kept_is_whole_prefixes(policy):
    """Of a request longer than the cache its first blocks stay, and hit the next time."""
    requests = [[0, 1, 2, 3, 4], [5, 6], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert runs_of(policy, requests, 3)[-1] == 3


def test_impossible_settings_are_refused():
    with pytest.raises(BadInput, match="give a number above 0"):
        configure(PREFIX_POLICIES, "ema:half_life=0")
