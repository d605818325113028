"""Ids that tell a prefix, and the worth of leading hits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import split, traces

from kvpager.errors import BadInput
from kvpager.replay.prefix import chain, chained, hit_tokens
from kvpager.replay.requests import Case, replay_requests

CONTENTS = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=40)


def prompts(contents):
    """Chained blocks, where each request begins, and how many different ones there are."""
    starts = np.cumsum([0, *map(len, contents)])
    flat = np.array([block for one in contents for block in one], np.int32)
    nodes, distinct = chained(flat, starts, 3)
    return nodes, starts, distinct


@given(contents=CONTENTS)
def test_an_id_tells_all_that_stands_before_it(contents):
    nodes, starts, distinct = prompts(contents)
    known = {}
    for one, first in zip(contents, starts, strict=False):
        for depth in range(len(one)):
            node = int(nodes[first + depth])
            assert known.setdefault(tuple(one[: depth + 1]), node) == node
    assert sorted(known.values()) == list(range(distinct))


def test_tokens_of_a_last_block_that_is_not_full():
    runs, starts = np.array([2, 1, 0], np.int32), np.array([0, 2, 5, 6])
    assert hit_tokens(runs, starts, np.array([700, 1500, 10]), 512).tolist() == [700, 512, 0]


@given(trace=traces())
def test_a_trace_that_becomes_chained_is_a_right_one_and_says_so(trace):
    done = chain(trace)
    done.check()
    assert done.chained
    assert done.source == {**trace.source, "chained": "by kvpager"}
    assert chain(done) is done
    assert not trace.chained


def test_prefix_semantics_want_chained_ids(tmp_path):
    """Contents that follow different blocks are one id in the file, and several prefixes."""
    from kvpager.traces.formats import load_requests
    from kvpager.traces.requeststore import read_requests, write_requests

    line = '{{"hash_ids": {}, "input_length": {}, "block_size": 16}}\n'
    path, ours = tmp_path / "any.jsonl", tmp_path / "any.parquet"
    path.write_text("".join(line.format(ids, 16 * len(ids)) for ids in ([1, 2], [3, 2], [1, 2])))
    write_requests(ours, load_requests(path))
    trace = read_requests(ours)
    case = Case("prefix-lru", 4)
    with pytest.raises(BadInput, match=r"any\.jsonl.*chain them first.*or replay by block"):
        replay_requests(trace, [case])
    assert replay_requests(trace, [Case("lru", 4)])[0]["block_hits"] == 3
    write_requests(ours, chain(trace), overwrite=True)
    assert replay_requests(read_requests(ours), [case])[0]["block_hits"] == 2


def test_a_piece_is_not_chained():
    from kvpager.testing.requests import session_requests

    first, second, *_ = split(session_requests(20), 10)
    assert chain(first) is first
    with pytest.raises(BadInput, match="chain the whole trace"):
        chain(second)
