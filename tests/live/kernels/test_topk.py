"""Exact top-k against a sort."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.errors import BadInput
from kvpager.live.kernels.topk import top_indices, top_mask


def slow(scores, count):
    """Sort by score, then by age; NaN last of all."""
    scores = np.where(np.isnan(scores), -np.inf, scores) + 0.0
    nan_last = [np.lexsort((np.arange(len(row)), row))[::-1][:count] for row in scores]
    return np.sort(np.array(nan_last, np.int32).reshape(len(scores), count), 1)


def drawn(random, kind, rows, columns):
    if kind == "normal":
        return random.standard_normal((rows, columns), np.float32)
    if kind == "ties":
        return random.integers(-3, 4, (rows, columns)).astype(np.float32)
    if kind == "one value":
        return np.full((rows, columns), -2.5, np.float32)
    if kind == "zeros":
        return np.where(random.random((rows, columns)) < 0.5, np.float32(0), np.float32(-0.0))
    logits = random.standard_normal((rows, columns)) * 12  # like softmax: many orders of magnitude, some of them 0
    return np.exp(logits - 80).astype(np.float32)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "ties", "one value", "zeros", "mass"]),
    rows=st.integers(1, 4),
    columns=st.integers(1, 700),
    share=st.floats(0, 1),
)
def test_agrees_with_a_sort(seed, kind, rows, columns, share):
    scores, count = drawn(np.random.default_rng(seed), kind, rows, columns), round(share * columns)
    chosen = top_indices(scores, count)
    assert chosen.dtype == np.int32
    np.testing.assert_array_equal(chosen, slow(scores, count))


def test_infinities_and_nan():
    scores = np.array([[np.nan, -np.inf, 3, np.inf, -1e-45, 1e-45, -3e38, 3e38, np.inf, -np.inf, 0]], np.float32)
    order = [8, 3, 7, 2, 5, 10, 4, 6, 9, 1, 0]
    for count in range(12):
        np.testing.assert_array_equal(top_indices(scores, count)[0], sorted(order[:count]))


def test_mask_has_a_count_of_its_own_for_each_row():
    scores = drawn(np.random.default_rng(0), "ties", 5, 100)
    counts = np.array([0, 1, 17, 99, 100], np.int32)
    mask = top_mask(scores, counts)
    assert (mask.sum(1) == counts).all()
    for row, count in enumerate(counts):
        np.testing.assert_array_equal(np.flatnonzero(mask[row]), slow(scores[row : row + 1], count)[0])


def test_long_rows():
    scores = drawn(np.random.default_rng(1), "mass", 3, 20_000)
    np.testing.assert_array_equal(top_indices(scores, 2000), slow(scores, 2000))


def test_a_count_out_of_range_is_refused():
    scores = np.zeros((2, 5), np.float32)
    for count in (-1, 6):
        with pytest.raises(BadInput, match="choose 0 to 5"):
            top_indices(scores, count)
        with pytest.raises(BadInput, match="0 to 5 a row"):
            top_mask(scores, np.array([1, count]))
    with pytest.raises(BadInput, match="2 rows"):
        top_mask(scores, np.array([1]))
