"""Fetch or compute again: the choice on arrays equals trying every one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.analysis.reuse import RULES, reachable, worth_fetching
from kvpager.errors import BadInput

SECONDS = st.integers(0, 6).map(float)  # few values, so that ties are met
BLOCK = st.tuples(st.booleans(), SECONDS, SECONDS)


def costs(request, fetched):
    return sum(fetch if chosen else again for (_, fetch, again), chosen in zip(request, fetched, strict=True))


def allowed(request, rule):
    """Every choice that a rule allows for one request."""
    for fetched in itertools.product([False, True], repeat=len(request)):
        held = all(there for (there, _, _), chosen in zip(request, fetched, strict=True) if chosen)
        if held and (rule == "missing_only" or list(fetched) == sorted(fetched, reverse=True)):
            yield fetched


@given(requests=st.lists(st.lists(BLOCK, max_size=6), min_size=1, max_size=6), rule=st.sampled_from(RULES))
def test_no_other_choice_takes_less_and_ties_go_to_fetching(requests, rule):
    flat = [block for request in requests for block in request]
    starts = np.cumsum([0, *map(len, requests)])
    held, fetch, again = (np.array([block[i] for block in flat], kind) for i, kind in enumerate((bool, float, float)))
    reach = reachable(held, starts, rule)
    chosen = worth_fetching(reach, fetch, again, starts, rule)
    assert not (chosen & ~held).any()
    for request, (begin, end) in zip(requests, itertools.pairwise(starts), strict=True):
        mine = tuple(chosen[begin:end].tolist())
        least = min((costs(request, fetched), -sum(fetched)) for fetched in allowed(request, rule))
        assert mine in set(allowed(request, rule))
        assert (costs(request, mine), -sum(mine)) == least


def test_behind_a_gap_only_a_pass_with_holes_can_use_a_block():
    held, starts = np.array([True, False, True]), np.array([0, 3])
    assert reachable(held, starts, "suffix").tolist() == [True, False, False]
    assert reachable(held, starts, "missing_only").tolist() == [True, False, True]


def test_an_unknown_rule_is_refused():
    with pytest.raises(BadInput, match="choose missing_only or suffix"):
        reachable(np.array([True]), np.array([0, 1]), "full")
