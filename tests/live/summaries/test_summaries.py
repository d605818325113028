"""Each key summary against its formula in float64; rows that grow and are used again; scales that widen; sessions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput, InvariantError
from kvpager.live.summaries import SUMMARIES
from kvpager.live.summaries.base import ChannelScale, Rows

LAYERS, HEADS, GROUP, DIM, BLOCK = 2, 3, 2, 8, 4
WIDE = {"key_bound": 1e-5, "key_mean": 2e-2, "key_mean_int8": 2e-2, "outlier_mean": 0.15, "outlier_mean_int8": 2e-2}
"""Largest error of each score, against the exact formula, for keys of size 1."""


def ids(*blocks):
    return np.array(blocks, np.int32)


def random_keys(rng, count, size=1.0):
    return (size * rng.normal(size=(count, HEADS, BLOCK, DIM)) + np.linspace(-2, 2, DIM)).astype(np.float32)


def random_query(rng):
    return rng.normal(size=(HEADS, GROUP, DIM)).astype(np.float32)


def made(name, compiled=True):
    summary = SUMMARIES[name](LAYERS, HEADS, DIM, BLOCK)
    assert summary.compiled
    summary.compiled = compiled
    return summary


def softmax_mean(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).mean(1)


def slow_score(name, query, keys):
    """[kv_heads, n] by loops over heads, queries and blocks, in float64."""
    query, keys = query.astype(float), keys.astype(float)
    logits = np.zeros((HEADS, GROUP, len(keys)))
    for head in range(HEADS):
        for row in range(GROUP):
            q = query[head, row]
            for block, own in enumerate(keys[:, head]):
                if name.startswith("key_bound"):
                    logits[head, row, block] = np.maximum(q * own.max(0), q * own.min(0)).sum()
                elif name.startswith("key_mean"):
                    logits[head, row, block] = q @ own.mean(0)
                else:
                    odd = int(np.argmax(((own - own.mean(0)) ** 2).sum(1)))
                    rest = np.delete(own, odd, 0).mean(0)
                    logits[head, row, block] = np.log(np.exp(q @ own[odd]) + (BLOCK - 1) * np.exp(q @ rest))
    return logits.mean(1) if name.startswith("key_bound") else softmax_mean(logits)


@pytest.mark.parametrize("name", sorted(WIDE))
@pytest.mark.parametrize("order", ["neighbours", "scattered"])
@pytest.mark.parametrize("compiled", [True, False])
def test_scores_are_the_formula(name, order, compiled):
    rng = np.random.default_rng(3)
    keys, query, summary = random_keys(rng, 40), random_query(rng), made(name, compiled)
    summary.put(1, np.arange(40, dtype=np.int32), keys)
    asked = ids(*range(5, 30)) if order == "neighbours" else ids(*rng.permutation(40)[:20])
    scores = summary.score(1, query, asked)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, slow_score(name, query, keys[asked]), atol=WIDE[name])
    if not name.startswith("key_bound"):
        np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["key_bound", "key_bound_int8"])
@given(
    seed=st.integers(0, 500),
    puts=st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.1, 1.0, 30.0])), min_size=1, max_size=6),
)
def test_a_bound_stays_a_bound_when_the_scale_widens(name, seed, puts):
    rng = np.random.default_rng(seed)
    summary, keys = made(name), np.zeros((0, HEADS, BLOCK, DIM), np.float32)
    for count, size in puts:
        more = random_keys(rng, count, size)
        summary.put(0, np.arange(len(keys), len(keys) + count, dtype=np.int32), more)
        keys = np.concatenate([keys, more])
    query = random_query(rng)
    true = np.einsum("hgd,nhkd->hgnk", query.astype(float), keys.astype(float)).max(-1).mean(1)
    bound = summary.score(0, query, np.arange(len(keys), dtype=np.int32))
    assert (bound >= true - 1e-4 * (1 + np.abs(true))).all()


def test_key_bound_in_8_bits_is_near_the_bound():
    rng = np.random.default_rng(0)
    keys, query = random_keys(rng, 60), random_query(rng)
    every = np.arange(60, dtype=np.int32)
    exact, coarse = made("key_bound"), made("key_bound_int8")
    for summary in (exact, coarse):
        summary.put(0, every, keys)
    above = coarse.score(0, query, every) - exact.score(0, query, every)
    assert (above > -1e-5).all()
    assert above.max() < 0.3


@pytest.mark.parametrize("name", sorted(SUMMARIES))
@given(seed=st.integers(0, 200))
def test_blocks_come_and_go_in_any_order(name, seed):
    """Put, overwrite, drop and put again, in both layers; scores depend on the keys put last, not on their rows."""
    rng = np.random.default_rng(seed)
    summary, truth = made(name), {}
    anchor = np.stack([np.full((HEADS, BLOCK, DIM), side, np.float32) for side in (-9, 9)])  # fixes the scale
    for layer in range(LAYERS):
        summary.put(layer, ids(50, 51), anchor)
    for _ in range(8):
        blocks = rng.choice(40, size=int(rng.integers(1, 6)), replace=False).astype(np.int32)
        if rng.random() < 0.3:
            summary.drop(blocks)
            truth = {block: keys for block, keys in truth.items() if block not in blocks}
            continue
        keys = random_keys(rng, len(blocks))
        for layer in range(LAYERS):
            summary.put(layer, blocks, keys)
        truth |= dict(zip(blocks.tolist(), keys, strict=True))
    if not truth:
        return
    asked = ids(*rng.permutation(list(truth)))
    fresh = made(name)
    fresh.put(0, ids(50, 51), anchor)
    fresh.put(0, asked, np.stack([truth[block] for block in asked.tolist()]))
    query = random_query(rng)
    for layer in range(LAYERS):
        np.testing.assert_allclose(summary.score(layer, query, asked), fresh.score(0, query, asked), rtol=2e-5, atol=1e-6)


def test_freed_room_is_used_again():
    rows = Rows()
    rows.add(ids(7, 3, 9))
    rows.drop(ids(3, 100))
    assert rows.add(ids(200, 201)).tolist() == [1, 3]
    assert rows.count == 4
    assert rows.of(ids(9, 201)) == slice(2, 4)
    assert rows.of(ids(201, 9)).tolist() == [3, 2]


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_a_block_without_keys_is_refused(name):
    summary = made(name)
    summary.put(0, ids(0, 1), random_keys(np.random.default_rng(0), 2))
    summary.drop(ids(1))
    for blocks in (ids(1), ids(0, 500)):
        with pytest.raises(InvariantError, match="put its keys first"):
            summary.score(0, random_query(np.random.default_rng(0)), blocks)
    assert summary.score(0, random_query(np.random.default_rng(0)), ids()).shape == (HEADS, 0)


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_a_session_comes_back_bit_for_bit_into_an_empty_summary(name):
    rng = np.random.default_rng(5)
    first, query = made(name), random_query(rng)
    for layer in range(LAYERS):
        first.put(layer, ids(4, 9, 2), random_keys(rng, 3))
        first.put(layer, ids(11), random_keys(rng, 1, 4.0))
    second = made(name)
    second.give(ids(0, 1, 2, 3), first.take(ids(4, 9, 2, 11)))
    for layer in range(LAYERS):
        np.testing.assert_array_equal(first.score(layer, query, ids(4, 9, 2, 11)), second.score(layer, query, ids(0, 1, 2, 3)))
        more = random_keys(rng, 2, 6.0)
        first.put(layer, ids(20, 21), more)
        second.put(layer, ids(5, 4), more)
        np.testing.assert_array_equal(
            first.score(layer, query, ids(4, 9, 2, 11, 20, 21)), second.score(layer, query, ids(0, 1, 2, 3, 5, 4))
        )


@pytest.mark.parametrize("name", sorted(WIDE))
def test_a_session_comes_back_among_others(name):
    rng = np.random.default_rng(6)
    first, second, keys, query = made(name), made(name), random_keys(rng, 8), random_query(rng)
    for layer in range(LAYERS):
        first.put(layer, np.arange(8, dtype=np.int32), keys)
        second.put(layer, ids(0, 1, 2), random_keys(rng, 3, 0.5))
    second.give(np.arange(10, 18, dtype=np.int32), first.take(np.arange(8, dtype=np.int32)))
    for layer in range(LAYERS):
        scores = second.score(layer, query, np.arange(10, 18, dtype=np.int32))
        np.testing.assert_allclose(scores, slow_score(name, query, keys), atol=2 * WIDE[name])


@given(seed=st.integers(0, 300), codes=st.sampled_from([16, 256]))
def test_codes_are_within_half_a_step_and_survive_widening(seed, codes):
    rng = np.random.default_rng(seed)
    scale = ChannelScale(1, 1, 4, codes)
    first = rng.normal(size=(1, 5, 4)).astype(np.float32)
    assert not scale.widen(0, first).any()
    step = scale.step[0].copy()
    values = scale.low[0][:, None] + step[:, None] * scale.encode(0, first)
    assert (np.abs(values - first) <= 0.5001 * step[:, None] + 1e-6).all()
    changed = scale.widen(0, 10 * first)
    outside = (10 * first).max(1) > first.max(1) + step
    assert (changed | ~outside).all()
    top = scale.low[0] + scale.step[0] * (codes - 1)
    assert (top + scale.step[0] / 2 >= (10 * first).max(1) - 1e-4).all()


@pytest.mark.parametrize(
    ("name", "of_head_block"),
    [("key_bound", 64), ("key_bound_int8", 16), ("key_mean", 16), ("key_mean_int8", 8), ("outlier_mean", 8)],
)
def test_bytes_are_counted(name, of_head_block):
    summary = made(name)
    assert summary.bytes_per_block == of_head_block
    scaled = name.endswith("int8") or name == "outlier_mean"
    vectors = 1 if name.startswith("key_mean") else 2
    assert summary.fixed_bytes == scaled * vectors * 2 * 4 * LAYERS * HEADS * DIM


def test_unknown_widths_are_refused():
    with pytest.raises(BadInput, match="choose 32, 16 or 8"):
        SUMMARIES["key_mean"](LAYERS, HEADS, DIM, BLOCK, bits=4)


def test_outlier_mean_finds_the_odd_key_where_the_mean_hides_it():
    """One key of block 3 answers the query, its neighbours pull away: the mean ranks the block last, outlier + mean first."""
    rng = np.random.default_rng(1)
    keys = 0.1 * rng.normal(size=(6, HEADS, BLOCK, DIM)).astype(np.float32)
    keys[3, :, :, 0] -= 2
    keys[3, :, 2, 0] = 4
    query = np.zeros((HEADS, GROUP, DIM), np.float32)
    query[..., 0] = 3
    order = {}
    for name in ("key_mean", "outlier_mean"):
        summary = made(name)
        summary.put(0, np.arange(6, dtype=np.int32), keys)
        order[name] = summary.score(0, query, np.arange(6, dtype=np.int32)).argmax(1)
    assert (order["outlier_mean"] == 3).all()
    assert (order["key_mean"] != 3).all()
