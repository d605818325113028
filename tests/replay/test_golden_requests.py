"""Hits of public traces: the same numbers as libCacheSim 0.3.5 by block, and as kvcache-simulator 0.1.3 by prefix."""

import functools

import numpy as np
import pytest
from tests.foreign import foreign_trace

from kvpager.replay.distances import block_depths, hits_by_capacity, prefix_depths
from kvpager.replay.requests import Case, replay_requests
from kvpager.replay.sampling import sampled_curve
from kvpager.traces.formats import load_requests

CAPACITIES = (1_638, 6_553, 26_214)
BY_BLOCK = {
    "fifo": ((13_873, 40_544, 83_223), (14_830, 38_053, 69_953)),
    "lru": ((14_262, 43_110, 90_416), (15_139, 40_500, 74_513)),
    "arc": ((17_782, 46_834, 87_662), (15_735, 42_188, 75_346)),
    "s3fifo": ((18_223, 47_466, 71_190), (14_910, 40_990, 70_700)),
    "s3fifo:threshold=1": ((18_225, 47_832, 72_982), (15_359, 40_970, 72_334)),
    "sieve": ((16_566, 29_514, 72_656), (10_018, 32_017, 75_346)),
    "belady": ((68_045, 103_966, 105_710), (42_292, 69_107, 77_953)),
}
BY_PREFIX = {
    "fifo": ((3_455_799, 9_717_517, 19_698_815), (6_879_809, 16_674_829, 28_035_903)),
    "lru": ((3_532_794, 10_394_228, 22_411_828), (7_159_612, 17_834_548, 30_190_015)),
    "opt": ((16_664_351, 26_215_927, 27_038_068), (16_654_950, 27_018_372, 31_535_563)),
}
TRACES = ("conversation", "synthetic")


@functools.cache
def prompts(name):
    return load_requests(foreign_trace(f"mooncake_{name}_trace.jsonl.gz"))


def hits(name, policy, semantics, warmup=0.0):
    cases = [Case(policy if semantics == "block" else f"prefix-{policy}", capacity) for capacity in CAPACITIES]
    return replay_requests(prompts(name), cases, warmup=warmup)


@pytest.mark.parametrize("number", range(2), ids=TRACES)
@pytest.mark.parametrize("policy", BY_BLOCK)
def test_block_hits(policy, number):
    assert tuple(row["block_hits"] for row in hits(TRACES[number], policy, "block")) == BY_BLOCK[policy][number]


@pytest.mark.parametrize("number", range(2), ids=TRACES)
@pytest.mark.parametrize("policy", BY_PREFIX)
def test_prefix_tokens_of_the_second_half(policy, number):
    assert tuple(row["prefix_hit_tokens"] for row in hits(TRACES[number], policy, "prefix", 0.5)) == BY_PREFIX[policy][number]


@pytest.mark.parametrize("name", TRACES)
def test_one_pass_gives_every_capacity(name):
    asked = prompts(name)
    for depths, semantics in (
        (block_depths(asked.blocks, asked.distinct), "block"),
        (prefix_depths(asked.blocks, asked.starts, asked.distinct), "prefix"),
    ):
        curve = hits_by_capacity(depths)
        rows = hits(name, "lru", semantics)
        assert [int(curve[min(capacity, len(curve) - 1)]) for capacity in CAPACITIES] == [row["block_hits"] for row in rows]
        assert curve[-1] == np.count_nonzero(np.bincount(asked.blocks)[asked.blocks] > 1) - np.count_nonzero(
            np.bincount(asked.blocks) > 1
        )


@pytest.mark.parametrize("semantics", ["block", "prefix"])
@pytest.mark.parametrize("name", TRACES)
def test_a_sampled_curve_is_off_by_no_more_than_it_says(name, semantics):
    asked, within = prompts(name), 0
    depths = prefix_depths(asked.blocks, asked.starts, asked.distinct)
    if semantics == "block":
        depths = block_depths(asked.blocks, asked.distinct)
    capacities = np.unique(np.geomspace(1, asked.distinct, 200).astype(np.int64))
    true = hits_by_capacity(depths)
    for seed in range(40):
        hits, error = sampled_curve(lambda: [asked], semantics=semantics, rate=0.1, seed=seed).hits(capacities)
        within += bool((np.abs(hits - true[np.minimum(capacities, len(true) - 1)]) <= error).all())
    assert within >= 38
