"""Shares of attention by hand, and what a profile covers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.analysis.shares import (
    any_of_group,
    exponentials,
    linear_shares,
    mass_covered,
    positions_needed,
    required_of_part,
    softmax_shares,
)

ZONES = ([0.1, 0.1, 0.8], [0.8, 0.05, 0.15])


def test_softmax_by_hand_and_at_large_scores():
    assert softmax_shares([0.0, np.log(3.0)]) == pytest.approx([0.25, 0.75])
    assert softmax_shares([1000.0, 1000.0 + np.log(3.0)]) == pytest.approx([0.25, 0.75])
    assert exponentials([0.0, 1.0]) == pytest.approx([1.0, np.e])


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.floats(-50, 50))
def test_softmax_sums_to_one_and_does_not_see_a_shift(scores, shift):
    shares = softmax_shares(scores)
    assert shares.sum() == pytest.approx(1)
    assert softmax_shares(np.array(scores) + shift) == pytest.approx(shares)


def test_linear_shares_are_quotients():
    assert linear_shares([[1.0, 3.0], [2.0, 2.0]]).tolist() == [[0.25, 0.75], [0.5, 0.5]]


@pytest.mark.parametrize(("held", "mass"), [(0.0, 0.0), (0.05, 0.4), (0.1, 0.8), (0.15, 0.825), (0.6, 0.925), (1.0, 1.0)])
def test_zones_are_filled_in_order(held, mass):
    assert mass_covered(held, *ZONES) == pytest.approx(mass)
    if held:
        assert positions_needed(mass, *ZONES) == pytest.approx(held)


def test_groups_and_parts():
    assert any_of_group(0.25, [1, 2]) == pytest.approx([0.25, 0.4375])
    assert required_of_part(0.97, 0.25) == pytest.approx(0.88)
    assert required_of_part(0.5, 0.25) < 0, "not needed at all"
