"""Token ranges against the plain definitions, token by token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvpager.traces.locality import RANGES, SPLITS, locality_ranges
from kvpager.traces.recording import ABSOLUTE_EDGES, RELATIVE_BINS


def members(tokens):
    start, stop = locality_ranges(tokens)
    return [set(range(first, after)) for first, after in zip(start, stop, strict=True)]


@given(tokens=st.integers(1, 3000))
def test_ranges_hold_the_tokens_of_their_definition(tokens):
    special, relative, absolute = np.split(np.arange(RANGES), SPLITS)
    found, everything = members(tokens), range(tokens)
    newest = max(1, tokens // 10)
    expected = [{0}, set(everything[:4]), set(everything[:100]), set(everything[-200:]), set(everything[-newest:])]
    assert [found[i] for i in special] == expected
    for number, i in enumerate(relative):
        assert found[i] == {token for token in everything if token * RELATIVE_BINS // tokens == number}
    for number, i in enumerate(absolute):
        upper = ABSOLUTE_EDGES[number + 1] if number + 1 < len(ABSOLUTE_EDGES) else float("inf")
        assert found[i] == {token for token in everything if ABSOLUTE_EDGES[number] <= tokens - 1 - token < upper}


@given(tokens=st.integers(1, 200_000))
def test_relative_and_absolute_bins_partition_the_tokens(tokens):
    start, stop = locality_ranges(tokens)
    sizes = stop - start
    _, relative, absolute = np.split(sizes, SPLITS)
    assert (sizes >= 0).all()
    assert relative.sum() == absolute.sum() == tokens
