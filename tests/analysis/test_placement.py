"""The notes' scores in closed form agree with the policies that compute them step by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.analysis.placement import (
    decay_factor,
    distance_priority,
    ema_fixed_point,
    ema_half_life_steps,
    ema_needed,
    ema_scores,
    order_difference,
    placement_score,
    prefetch_blend,
)

WEIGHTS = [0.25, 0.55, 0.2]
unit = st.floats(0, 1)


def test_ema_by_hand():
    assert ema_scores([1.0, 0.0, 0.5], 0.5) == pytest.approx([0.5, 0.25, 0.375])
    assert ema_scores([0.0], 0.25, start=1.0) == pytest.approx([0.75])
    assert decay_factor(0.2) == pytest.approx(0.8)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
def test_after_a_half_life_half_is_left(alpha):
    assert decay_factor(alpha) ** ema_half_life_steps(alpha) == pytest.approx(0.5)


@given(st.lists(unit, min_size=1, max_size=5), st.floats(0.05, 1))
def test_repeated_observations_settle_around_their_mean(observed, alpha):
    scores = ema_scores(observed * 400, alpha)[-len(observed) :]
    assert scores.mean() == pytest.approx(float(ema_fixed_point(observed)), abs=1e-6)


@given(unit, unit, unit, st.floats(0.01, 1))
def test_the_ema_needed_is_the_one_that_reaches_the_cut(recency, anchor, ema, cut):
    assert placement_score(recency, ema_needed(cut, recency, anchor, WEIGHTS), anchor, WEIGHTS) == pytest.approx(cut)
    assert 0 <= placement_score(recency, ema, anchor, WEIGHTS) <= 1 + 1e-12


def test_prefetch_priorities():
    assert distance_priority([0, 100, 300], 100) == pytest.approx([1, 0.5, 0.25])
    assert prefetch_blend(100, 0.5, 100, [0.6, 0.4]) == pytest.approx(0.5)


@given(st.lists(st.integers(0, 500), min_size=2, max_size=9, unique=True))
def test_distance_and_age_rank_the_past_alike(positions):
    assert order_difference(500, positions) == 0


def test_they_would_differ_for_the_future():
    assert order_difference(500, np.array([499, 503])) == 2
