"""Rows of a request replay: counted by hand, and the same from every path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policies.requests import slow

from kvpager.errors import BadInput, UnknownName
from kvpager.replay.prefix import chained
from kvpager.replay.requests import Case, ceiling, replay_requests
from kvpager.traces.requests import RequestTrace


def requests_of(blocks, starts, input_tokens, block_size):
    n = len(input_tokens)
    none = np.full(n, -1, np.int64)
    return RequestTrace(
        np.zeros(n), none, none, input_tokens, np.zeros(n, np.int64), np.zeros(n, np.int32), starts, blocks, block_size, True
    )


def prompts(contents, block_size=4, short=1):
    """Requests whose last block lacks `short` tokens."""
    starts = np.cumsum([0, *map(len, contents)])
    nodes, _ = chained(np.array([block for one in contents for block in one], np.int32), starts, 100)
    return requests_of(nodes, starts, np.array([max(len(one) * block_size - short, 0) for one in contents]), block_size)


def row(asked, policy, capacity, semantics="block", **options):
    return replay_requests(asked, [Case(policy if semantics == "block" else f"prefix-{policy}", capacity)], **options)[0]


def test_a_row_counted_by_hand():
    asked = prompts([[1, 2, 3], [1, 2], [1, 2, 3], [5]])
    found = row(asked, "lru", 3)
    assert (found["accesses"], found["block_hits"], found["requests"]) == (9, 5, 4)
    assert found["prefix_hit_tokens"] == 7 + 11
    assert found["whole_requests"] == 2
    assert found["misses"] == {"compulsory": 4, "capacity": 0, "policy": 0}
    assert found["optimum"] == "belady"
    assert found["prefix_token_hit_ratio"] == pytest.approx(18 / (11 + 7 + 11 + 3))
    assert found["ceiling"]["block_hit_ratio"] == pytest.approx(5 / 9)
    assert found["evidence"] == "simulated"
    late = row(asked, "lru", 3, warmup=0.5)
    assert (late["accesses"], late["block_hits"], late["warmup_requests"]) == (4, 3, 2)


def test_a_block_behind_a_miss_is_a_block_hit_and_no_prefix_hit():
    asked = prompts([[1, 2], [1, 2]])
    assert row(asked, "fifo", 1)["block_hits"] == 0
    starts = np.array([0, 2, 4])
    raw = requests_of(np.array([0, 1, 2, 1], np.int32), starts, np.array([8, 8]), 4)
    found = row(raw, "lru", 3)
    assert (found["block_hits"], found["prefix_hit_tokens"], found["whole_requests"]) == (1, 0, 0)


@settings(max_examples=80)
@given(
    contents=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25),
    capacity=st.integers(0, 12), warmup=st.sampled_from([0.0, 0.3, 0.9]),
)  # fmt: skip
def test_rows_equal_the_slow_reference(contents, capacity, warmup):
    asked = prompts(contents)
    first = int(warmup * len(contents))
    requests = [asked.blocks[a:b].tolist() for a, b in zip(asked.starts[:-1], asked.starts[1:], strict=True)]
    hits = slow.lru(asked.blocks.tolist(), capacity) if capacity else [False] * len(asked.blocks)
    block = row(asked, "lru", capacity, warmup=warmup)
    assert block["block_hits"] == sum(hits[asked.starts[first] :])
    runs = slow.prefix(requests, capacity, "lru") if capacity else [0] * len(requests)
    prefix = row(asked, "lru", capacity, "prefix", warmup=warmup)
    assert prefix["block_hits"] == sum(runs[first:])
    expected = [min(run * 4, len(one) * 4 - 1) for run, one in zip(runs, requests, strict=True)]
    assert prefix["prefix_hit_tokens"] == sum(expected[first:])
    assert prefix["whole_requests"] == sum(run == len(one) for run, one in list(zip(runs, requests, strict=True))[first:])
    for found in (block, prefix):
        assert found["accesses"] == found["block_hits"] + sum(found["misses"].values())
        assert found["block_hit_ratio"] <= found["ceiling"]["block_hit_ratio"]


def test_an_infinite_cache_reaches_the_ceiling_and_an_empty_one_nothing():
    asked = prompts(np.random.default_rng(0).integers(0, 3, (60, 6)).tolist())
    above = ceiling(asked)
    cases = [Case("belady", 10**9), Case("lru", asked.distinct), Case("prefix-opt", asked.distinct)]
    for found in replay_requests(asked, cases, threads=2):
        assert (found["block_hits"], found["prefix_hit_tokens"]) == (above["block_hits"], above["prefix_hit_tokens"])
        assert found["misses"] | {"compulsory": 0} == {"compulsory": 0, "capacity": 0, "policy": 0}
    assert row(asked, "lru", 0)["block_hits"] == row(asked, "lru", 0, "prefix")["block_hits"] == 0


def test_progress_is_told_and_rows_keep_their_order():
    asked, told = prompts([[1, 2], [1, 3]]), []
    cases = [Case("lru", 2), Case("fifo", 1), Case("prefix-lru", 1)]
    rows = replay_requests(asked, cases, progress=lambda done, total: told.append((done, total)))
    assert [(found["policy"], found["capacity_blocks"]) for found in rows] == [("lru", 2), ("fifo", 1), ("prefix-lru", 1)]
    assert told == [(done, 6) for done in range(1, 7)]  # three optima


def test_misses_by_cause_counted_by_hand():
    """Two blocks fit: LRU loses a cycle of three whole, Belady hits every other time."""
    asked = prompts([[1], [2], [3]] * 4)
    found = row(asked, "lru", 2)
    assert found["misses"] == {"compulsory": 3, "capacity": 4, "policy": 5}
    assert found["headroom"]["block_hit_ratio"] == pytest.approx(5 / 12)
    assert row(asked, "belady", 2)["misses"] == {"compulsory": 3, "capacity": 4, "policy": 0}
    late = row(asked, "lru", 2, warmup=0.5)
    assert late["misses"]["compulsory"] == 0
    assert sum(late["misses"].values()) == 6
    prefix = row(asked, "lru", 2, "prefix")  # with bypass two of three stay for ever
    assert (prefix["optimum"], prefix["misses"]) == ("prefix-opt", {"compulsory": 3, "capacity": 3, "policy": 6})


def test_without_the_optimum_a_row_names_none():
    asked = prompts([[1], [2], [3]] * 4)
    quick = row(asked, "lru", 2, optimum=False)
    assert quick["misses"] == {"compulsory": 3, "other": 9}
    assert not {"optimum", "headroom"} & quick.keys()
    full = row(asked, "lru", 2)
    assert {name: value for name, value in full.items() if name in quick and name != "misses"} == {
        name: value for name, value in quick.items() if name != "misses"
    }


def test_each_size_has_its_optimum_replayed_once():
    asked, told = prompts([[1, 2], [1, 3]]), []
    cases = [Case("lru", 2), Case("fifo", 2), Case("belady", 2), Case("prefix-lru", 2), Case("lru", 2), Case("lru", 1)]
    rows = replay_requests(asked, cases, progress=lambda done, total: told.append(total))
    assert told == [7] * 7  # five different cases, and the two optima that are not among them
    assert rows[0] == rows[4]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("lru", -1), "impossible"),
        (Case("prefix-arc", 3), "among prefix policies"),
        (Case("2q:queue=2.0", 3), "give a share"),
    ],
)
def test_impossible_cases_are_refused(case, message):
    with pytest.raises(BadInput, match=message):
        replay_requests(prompts([[1]]), [case])


def test_impossible_requests_are_refused():
    with pytest.raises(UnknownName, match="lru"):
        row(prompts([[1]]), "lrru", 1)
    with pytest.raises(BadInput, match="leaves none"):
        row(prompts([[1]]), "lru", 1, warmup=1.0)
    with pytest.raises(BadInput, match="no blocks"):
        row(requests_of(np.zeros(0, np.int32), np.array([0, 0]), np.array([7]), 4), "lru", 1)
