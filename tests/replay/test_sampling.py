"""Sampled curves: depths without error where all is sampled, and a printed error that holds where it is not."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made import first_seen, split

from kvpager.errors import BadInput, TraceError
from kvpager.replay.distances import NEVER, block_depths, hits_by_capacity, prefix_depths
from kvpager.replay.prefix import chained
from kvpager.replay.sampledstack import BINS, HOT, PARTS, SampledStack, bin_edges
from kvpager.replay.sampling import sampled_curve
from kvpager.testing.requests import agent_requests, document_requests, session_requests
from kvpager.traces.requests import COLUMNS, RequestTrace
from kvpager.traces.requeststore import iter_requests, write_requests

MADE = {
    "sessions": lambda size: session_requests(250 * size, systems=20, turns=6, seed=2),
    "documents": lambda size: document_requests(1_000 * size, documents=300 * size, exponent=0.9, seed=1),
    "agents": lambda size: agent_requests(30 * size, steps=25, context_tokens=3000, seed=3),
}


def requests_of(contents, *, prefix):
    """Requests of blocks of 4 tokens, the last of which lacks one."""
    contents = [one for one in contents if one]
    starts = np.cumsum([0, *map(len, contents)])
    flat = np.array(first_seen(block for one in contents for block in one), np.int32)
    columns = {name: np.zeros(len(contents), dtype) for name, dtype in COLUMNS.items()}
    columns["input_tokens"] = 4 * np.diff(starts) - 1
    blocks = chained(flat, starts, int(flat.max()) + 1)[0] if prefix else flat
    return RequestTrace(**columns, starts=starts, blocks=blocks, block_size=4, chained=prefix)


def depths_of(trace, semantics):
    if semantics == "prefix":
        return prefix_depths(trace.blocks, trace.starts, trace.distinct)
    return block_depths(trace.blocks, trace.distinct)


def exact(trace, semantics, capacities):
    hits = hits_by_capacity(depths_of(trace, semantics))
    return hits[np.minimum(capacities, len(hits) - 1)]


@settings(max_examples=60)
@given(
    contents=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=60).filter(any),
    prefix=st.booleans(), first=st.integers(0, 5), seed=st.integers(0, 9),
)  # fmt: skip
def test_depths_are_exact_where_all_blocks_are_sampled(contents, prefix, first, seed):
    """Hot, cold and new blocks are counted apart, and touches are numbered anew now and then: the sum is the depth."""
    trace = requests_of(contents, prefix=prefix)
    part = np.random.default_rng(seed).integers(0, PARTS + 1, trace.distinct).astype(np.int8)
    part[0] = 0
    stack = SampledStack(np.arange(trace.distinct, dtype=np.int32), part, prefix)
    stack.add(trace, min(first, len(trace)))
    depths = depths_of(trace, "prefix" if prefix else "block")
    counted = np.arange(len(depths)) >= trace.starts[min(first, len(trace))]
    known = counted & (depths != NEVER)
    tokens = np.full(len(depths), 4)
    tokens[trace.starts[1:] - 1] = 3
    columns = np.searchsorted(bin_edges(), depths[known], side="right") - 1
    for what, weights in enumerate((np.ones(len(depths)), tokens)):
        for kind in range(PARTS + 1):
            mine = part[trace.blocks[known]] == kind
            assert np.array_equal(stack.found[what, kind], np.bincount(columns[mine], weights[known][mine], BINS))
    cold = known & (part[trace.blocks] != HOT)
    assert stack.counted.tolist() == [counted.sum(), tokens[counted].sum(), cold.sum(), tokens[cold].sum()]


@pytest.fixture(scope="module", params=MADE)
def made(request):
    return MADE[request.param](4)


def inside(trace, semantics, rate, seeds):
    """Share of the seeds whose whole curve has no larger error than is printed."""
    capacities = np.unique(np.geomspace(1, trace.distinct, 150).astype(np.int64))
    true, within = exact(trace, semantics, capacities), 0
    for seed in range(seeds):
        hits, error = sampled_curve(lambda: [trace], semantics=semantics, rate=rate, seed=seed).hits(capacities)
        within += bool((np.abs(hits - true) <= error).all())
    return within / seeds


@pytest.mark.parametrize("rate", [0.03, 0.2])
@pytest.mark.parametrize("semantics", ["block", "prefix"])
def test_the_true_curve_is_within_the_printed_error(made, semantics, rate):
    assert inside(made, semantics, rate, 40) >= 0.95


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MADE)
def test_the_true_curve_of_ten_million_accesses_is_within_the_printed_error(name):
    trace = MADE[name](300)
    assert len(trace.blocks) > 5_000_000
    _, error = sampled_curve(lambda: [trace], semantics="prefix", rate=0.1).hits(np.array([trace.distinct // 10]))
    assert error < 0.01 * len(trace.blocks)
    for semantics, rate in itertools.product(("block", "prefix"), (0.01, 0.1)):
        assert inside(trace, semantics, rate, 20) >= 0.9


def test_the_printed_error_says_something(made):
    """An error as wide as the curve would always hold."""
    capacities = np.unique(np.geomspace(made.distinct / 20, made.distinct, 60).astype(np.int64))
    curve = sampled_curve(lambda: [made], semantics="prefix", rate=0.2)
    hits, error = curve.hits(capacities)
    assert np.median(error) < 0.03 * curve.accesses  # of a few thousand blocks that were drawn
    assert (np.diff(hits) >= 0).all()


def test_a_block_that_opens_every_request_does_not_decide_the_curve():
    """With one hot block in three accesses, plain hashing is off by a third when it is not drawn, and by more when it is."""
    rng = np.random.default_rng(0)
    trace = requests_of([[0, int(a), int(b)] for a, b in rng.integers(1, 5000, (20_000, 2))], prefix=False)
    capacities = np.array([500, 2000, 4000])
    true = exact(trace, "block", capacities)
    for seed in range(10):
        hits, _ = sampled_curve(lambda: [trace], rate=0.05, seed=seed).hits(capacities)
        assert np.abs(hits - true).max() < 0.02 * len(trace.blocks)


def test_an_infinite_cache_hits_what_is_counted(made):
    for semantics in ("block", "prefix"):
        curve = sampled_curve(lambda: [made], semantics=semantics, rate=0.1, warmup=0.3)
        begin = made.starts[curve.first]
        again = (depths_of(made, semantics) != NEVER)[begin:]
        assert curve.hits(np.array([made.distinct]))[0][0] == pytest.approx(again.sum())
        assert (curve.accesses, curve.requests) == (len(again), len(made) - int(0.3 * len(made)))
        assert curve.tokens == made.input_tokens[curve.first :].sum()


def test_tokens_of_leading_hits_weigh_what_a_block_holds(made):
    left = made.input_tokens - 16 * (np.diff(made.starts) - 1)
    tokens = np.full(len(made.blocks), 16)
    tokens[made.starts[1:] - 1] = np.minimum(left, 16)
    true = hits_by_capacity(depths_of(made, "prefix"), tokens)
    capacities = np.geomspace(100, made.distinct, 20).astype(np.int64)
    curve = sampled_curve(lambda: [made], semantics="prefix", rate=0.3)
    hits, error = curve.hit_tokens(capacities)
    assert (np.abs(hits - true[np.minimum(capacities, len(true) - 1)]) <= error).all()
    with pytest.raises(BadInput, match="sample by prefix"):
        sampled_curve(lambda: [made], rate=0.3).hit_tokens(capacities)


def test_a_trace_in_pieces_gives_the_same_curve(made, tmp_path):
    write_requests(tmp_path / "made.parquet", made)
    capacities = np.array([100, 1000, 10_000])
    whole, pieces, streamed = (
        sampled_curve(pieces, semantics="prefix", rate=0.1, warmup=0.5)
        for pieces in (lambda: [made], lambda: split(made, 77), lambda: iter_requests(tmp_path / "made.parquet", 500))
    )
    for other in (pieces, streamed):
        assert np.array_equal(whole.hits(capacities), other.hits(capacities))
        assert np.array_equal(whole.hit_tokens(capacities), other.hit_tokens(capacities))


def test_what_cannot_be_sampled_is_refused():
    trace = session_requests(60)
    with pytest.raises(BadInput, match="its error needs 128: raise the rate, or count all"):
        sampled_curve(lambda: [trace], rate=0.01)
    with pytest.raises(BadInput, match="above 0 and below 1"):
        sampled_curve(lambda: [trace], rate=1.0)
    with pytest.raises(BadInput, match="choose block or prefix"):
        sampled_curve(lambda: [trace], semantics="token")
    with pytest.raises(BadInput, match="leaves none"):
        sampled_curve(lambda: [trace], warmup=1.0)
    with pytest.raises(BadInput, match="chain them first"):
        sampled_curve(lambda: [dataclasses.replace(trace, chained=False)], semantics="prefix")
    once = iter([[trace], [session_requests(50)]])
    with pytest.raises(TraceError, match="another one the second time"):
        sampled_curve(lambda: next(once), rate=0.3)
