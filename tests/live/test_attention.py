"""The pieces of watched attention against their definitions, on random shapes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.live.attention import KeyBounds, attend, block_mass, causal_mask, range_mass, range_plan, wide_attend
from kvpager.traces.locality import locality_ranges


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(tokens=st.integers(1, 700), block_size=st.sampled_from([1, 7, 16, 64]), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_range_mass_equals_the_sum_over_each_range(tokens, block_size, seed):
    probability = normal(seed, 2, 3, tokens).softmax(-1)
    plan = range_plan(tokens, block_size)
    got = range_mass(block_mass(probability, block_size), probability[..., plan.tokens], plan)
    rows = probability.double()
    expected = torch.stack([rows[..., first:after].sum(-1) for first, after in zip(*locality_ranges(tokens), strict=True)], -1)
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)


@given(
    group=st.integers(1, 4), queries=st.integers(1, 5), tokens=st.integers(5, 60), capped=st.booleans(), seed=st.integers(0, 9)
)
@settings(max_examples=40)
def test_attend_equals_attention_of_each_head_alone(group, queries, tokens, capped, seed):
    query, key, value = normal(seed, 2 * group, queries, 8), normal(seed + 1, 2, tokens, 8), normal(seed + 2, 2, tokens, 8)
    mask, softcap = causal_mask(queries, tokens - queries, tokens), 1.5 if capped else None
    output, probability = attend(query, key, value, scaling=0.7, softcap=softcap, mask=mask)
    sliced = wide_attend(query, key, value, scaling=0.7, softcap=softcap, rows=2)
    for head in range(2 * group):
        for row in range(queries):
            seen = tokens - queries + row + 1
            logits = 0.7 * key[head // group, :seen].double() @ query[head, row].double()
            expected = (torch.tanh(logits / 1.5) * 1.5 if capped else logits).softmax(0)
            np.testing.assert_allclose(probability[head // group, head % group, row, :seen], expected, rtol=1e-4, atol=1e-6)
            assert (probability[head // group, head % group, row, seen:] == 0).all()
            mixed = expected @ value[head // group, :seen].double()
            np.testing.assert_allclose(output[head, row], mixed, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(sliced[head, row], mixed, rtol=1e-4, atol=1e-5)


@given(prefilled=st.integers(1, 50), appended=st.integers(0, 40), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_bounds_kept_token_by_token_equal_bounds_from_scratch(prefilled, appended, seed):
    keys = normal(seed, 3, 2, prefilled + appended, 4)
    query = normal(seed + 1, 3, 2, 5, 4)
    bounds = KeyBounds(3, 2, 4, 1, 8)
    for layer in range(3):
        bounds.fill(layer, keys[layer, :, :prefilled])
    for token in range(prefilled, prefilled + appended):
        bounds.append(keys[:, :, token], token)
    blocks = -(-(prefilled + appended) // 8)
    got = bounds.bound(query, blocks)
    for block in range(blocks):
        part = keys[:, :, block * 8 : (block + 1) * 8]
        low, high = part.amin(2)[:, :, None], part.amax(2)[:, :, None]
        expected = torch.maximum(query * low, query * high).sum(-1).mean(-1)
        np.testing.assert_allclose(got[:, :, block], expected, rtol=1e-4, atol=1e-5)
