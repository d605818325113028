"""Scores by key summaries against the same in float64, by the definition."""

import numpy as np
import pytest
from tests.live.kernels.cases import rounded

from kvpager.errors import BadInput
from kvpager.live.kernels.score import score_bounds, score_means, score_outlier_mean

HEADS, ROWS, DIM = 2, 45, 40
WHICH = [None, slice(3, 20), slice(5, 5), np.array([7, 7, 44, 0, 3], np.int32), np.arange(45, dtype=np.int32)[::-1]]


def softmax_mean(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf))
    return (weights / weights.sum(-1, keepdims=True)).mean(1)


def vectors(kind, random, dim=DIM):
    """An array as it is stored, with room for more rows than are used, what its codes stand for, and its values."""
    values = random.standard_normal((HEADS, ROWS, dim)).astype(np.float32)
    if kind == "float32":
        return values, None, values
    if kind == "bfloat16":
        values = rounded(values)
        return (values.view(np.uint32) >> 16).astype(np.uint16), None, values
    codes = random.integers(0, 256, values.shape).astype(np.uint8)
    low, step = random.standard_normal((HEADS, dim)).astype(np.float32), random.random((HEADS, dim)).astype(np.float32) / 64
    return codes, (low, step), low[:, None] + step[:, None] * codes.astype(np.float64)


def close(scores, exact):
    assert scores.dtype == np.float32
    assert scores.shape == exact.shape
    np.testing.assert_allclose(scores, exact, rtol=2e-5, atol=2e-5 * np.abs(exact).max(initial=0))


@pytest.mark.parametrize(("kind", "group"), [("float32", 1), ("bfloat16", 3), ("uint8", 4), ("float32", 12)])
def test_means(kind, group):
    random = np.random.default_rng(0)
    query = random.standard_normal((HEADS, group, DIM)).astype(np.float32)
    stored, code, values = vectors(kind, random)
    for rows in WHICH:
        chosen = values[:, slice(None) if rows is None else rows].astype(np.float64)
        close(score_means(query, stored, rows, code), softmax_mean(query.astype(np.float64) @ chosen.swapaxes(1, 2)))


@pytest.mark.parametrize(("kind", "softmax"), [("float32", True), ("bfloat16", False), ("uint8", False), ("uint8", True)])
def test_bounds(kind, softmax):
    random = np.random.default_rng(1)
    query = random.standard_normal((HEADS, 3, DIM)).astype(np.float32)
    (high, code, highs), (low, other, lows) = vectors(kind, random), vectors(kind, random)
    codes = None if code is None else (code, other)
    for rows in WHICH:
        chosen = slice(None) if rows is None else rows
        q, most, least = query.astype(np.float64)[:, :, None], highs[:, None, chosen], lows[:, None, chosen]
        bound = (np.maximum(q, 0) * most + np.minimum(q, 0) * least).sum(-1)
        exact = softmax_mean(bound) if softmax else bound.mean(1)
        close(score_bounds(query, high, low, rows, codes, softmax=softmax), exact)


@pytest.mark.parametrize(("kind", "group"), [("nibbles", 1), ("nibbles", 4), ("nibbles", 7), ("float32", 2), ("uint8", 3)])
def test_outlier_and_mean(kind, group):
    random = np.random.default_rng(2)
    query = random.standard_normal((HEADS, group, DIM)).astype(np.float32)
    (outlier, code, outliers), (mean, other, means) = (vectors("uint8" if kind == "nibbles" else kind, random) for _ in "ab")
    stored, codes = (outlier, mean), None if code is None else (code, other)
    if kind == "nibbles":
        stored = random.integers(0, 256, outlier.shape).astype(np.uint8)
        outliers = code[0][:, None] + code[1][:, None] * (stored & 15)
        means = other[0][:, None] + other[1][:, None] * (stored >> 4)
    for rows in WHICH:
        chosen = slice(None) if rows is None else rows
        single, rest = (
            query.astype(np.float64) @ array[:, chosen].astype(np.float64).swapaxes(1, 2) for array in (outliers, means)
        )
        exact = softmax_mean(np.logaddexp(single, rest + np.log(15)))
        close(score_outlier_mean(query, stored, codes, 15, rows), exact)


def test_a_view_with_room_for_more_rows():
    random = np.random.default_rng(3)
    query = random.standard_normal((HEADS, 2, DIM)).astype(np.float32)
    stored, _, values = vectors("float32", random)
    exact = softmax_mean(query.astype(np.float64) @ values[:, :30].astype(np.float64).swapaxes(1, 2))
    close(score_means(query, stored[:, :30]), exact)


def test_large_logits_stay_finite():
    query = np.full((1, 2, 8), 40, np.float32)
    means = np.stack([np.full(8, value, np.float32) for value in (-2, 1, 3)])[None]
    np.testing.assert_array_equal(score_means(query, means), [[0, 0, 1]])


def test_what_does_not_fit_is_refused():
    query, means = np.ones((2, 3, 16), np.float32), np.ones((2, 5, 16), np.float32)
    code = (np.ones((2, 16), np.float32),) * 2
    turned = means.swapaxes(1, 2).copy().swapaxes(1, 2)
    for wrong in (means[:1], means[..., :8], means.astype(np.float64), means.astype(np.uint8), turned):
        with pytest.raises(BadInput, match="key summaries"):
            score_means(query, wrong)
    with pytest.raises(BadInput, match="its codes"):
        score_means(query, means, code=code)
    with pytest.raises(BadInput, match="multiple of 8"):
        score_means(query[..., :12], means[..., :12])
    for row in (-1, 5):
        with pytest.raises(BadInput, match="rows"):
            score_means(query, means, np.array([0, row], np.int32))
