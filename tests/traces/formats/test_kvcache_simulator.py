"""kvcache-simulator JSONL: read as that program reads it, which is held beside it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvcache_sim.trace import parse_trace_lines

from kvpager.errors import TraceError
from kvpager.traces.formats import load_requests

LINE = {"block_size": 64, "hash_ids": [2001, 2002], "input_length": 100}


def load(folder, *records, form="kvcache-simulator"):
    path = folder / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return load_requests(path, form)


def record(size, tokens, full, ids, options):
    count = tokens // size if full else -(-tokens // size)
    made = {"block_size": size, "input_length": tokens, "hash_ids": [ids[i % len(ids)] for i in range(count)]}
    if "weights" in options:
        made["block_tokens"] = [min(size, tokens - i * size) for i in range(count)]
    return made | ({"output_length": 3} if "output" in options else {})


ids = st.integers(0, 5) | st.integers(0, 5).map(str) | st.sampled_from(["a", "b", "007", "-3", "-0", str(2**70), "", 2**64 - 1])


@given(st.integers(1, 9).flatmap(lambda size: st.lists(
    st.builds(record, st.just(size), st.integers(size, 60), st.booleans(), st.lists(ids, min_size=1),
              st.sets(st.sampled_from(["weights", "output"]))), min_size=1, max_size=6)))  # fmt: skip
def test_the_same_blocks_and_tokens_as_in_that_program(tmp_path_factory, records):
    trace = load(tmp_path_factory.mktemp("sim"), *records)
    theirs = parse_trace_lines(map(json.dumps, records))
    assert trace.blocks.tolist() == theirs.ids
    assert trace.starts.tolist() == theirs.request_starts
    assert trace.distinct == theirs.unique_raw_blocks
    assert trace.block_size == theirs.block_size
    assert trace.input_tokens.tolist() == [line["input_length"] for line in records]


def test_timestamps_are_optional(tmp_path):
    trace = load(tmp_path, LINE, LINE | {"timestamp": 2000}, LINE)
    assert trace.time_s.tolist() == [0.0, 2.0, 2.0]
    assert load(tmp_path, LINE | {"timestamp": 3}, form="kvcache-simulator:timestamp_s=1.0").time_s.tolist() == [3.0]


def test_a_missing_block_size_can_be_set(tmp_path):
    bare = {"hash_ids": [1], "input_length": 10}
    assert load(tmp_path, bare, form="kvcache-simulator:block_size=16").block_size == 16
    with pytest.raises(TraceError, match=r"line 1: expected 'block_size', the tokens of a block, or the setting block_size="):
        load(tmp_path, bare)
    with pytest.raises(TraceError, match=r"line 2: expected blocks of 16 tokens, as in the lines above, not of 64"):
        load(tmp_path, bare, LINE, form="kvcache-simulator:block_size=16")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"block_tokens": [64, 35]}, "expected 'block_tokens' of 64 each, the last one with what is left of 100"),
        ({"block_tokens": [64]}, "expected 'block_tokens'"),
        ({"hash_ids": [1, 2.0]}, "expected 'hash_ids', a list of whole numbers or texts"),
        ({"hash_ids": [1, False]}, "expected 'hash_ids'"),
        ({"hash_ids": [1, 2, 3]}, "expected 2 blocks of 64 tokens for a length of 100, not 3"),
        ({"timestamp": "now"}, "expected 'timestamp', a number, not a text"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(tmp_path, change, expected):
    with pytest.raises(TraceError) as caught:
        load(tmp_path, LINE, LINE | change)
    assert f"a.jsonl', line 2: {expected}" in str(caught.value)
