"""Mooncake JSONL: what is written in it comes out, and each way to be wrong is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import mooncake_lines

from kvpager.errors import TraceError
from kvpager.testing.requests import GENERATORS
from kvpager.traces.formats import load_requests

LINE = {"timestamp": 27482, "input_length": 600, "output_length": 5, "hash_ids": [0, 2**64 - 1]}


def load(tmp_path, *records, form="mooncake"):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return load_requests(path, form)


def test_one_request(tmp_path):
    trace = load(tmp_path, LINE, LINE | {"timestamp": 27483.5})
    assert trace.time_s.tolist() == [27.482, 27.4835]
    assert trace.input_tokens.tolist() == [600, 600]
    assert trace.blocks.tolist() == [0, 1, 0, 1]
    assert trace.session.tolist() == trace.parent.tolist() == [-1, -1]


@given(st.sampled_from(sorted(GENERATORS)), st.integers(0, 10**6))
def test_round_trip_through_lines(tmp_path_factory, name, seed):
    kind = {"sessions": {"sessions": 5}, "documents": {"requests": 20}, "agents": {"agents": 2, "steps": 5}}[name]
    trace = GENERATORS[name](**kind, seed=seed)
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("\n".join(mooncake_lines(trace)))
    again = load_requests(path, "mooncake:block_size=16")
    for column in ("blocks", "starts", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(again, column), getattr(trace, column))
    assert np.allclose(again.time_s, np.floor(trace.time_s * 1000) / 1000)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"timestamp": 1}, "expected a time that does not go backwards, not 0.001 s after 27.482 s"),
        ({"timestamp": None}, "expected 'timestamp', a number, not nothing"),
        ({"timestamp": True}, "expected 'timestamp', a number, not True"),
        ({"input_length": 0}, "expected 'input_length', a whole number of at least 1, not 0"),
        ({"input_length": 2.5}, "expected 'input_length', a whole number of at least 1, not 2.5"),
        ({"output_length": -1}, "expected 'output_length', a whole number of at least 0, not -1"),
        ({"input_length": 1025}, "expected 3 blocks of 512 tokens for a length of 1025, not 2"),
        ({"input_length": 512}, "expected 1 blocks of 512 tokens for a length of 512, not 2"),
        ({"hash_ids": "12"}, "expected 'hash_ids', a list of whole numbers from 0 to 2^64 - 1, not a text"),
        ({"hash_ids": [1, -2]}, "expected 'hash_ids'"),
        ({"hash_ids": [1, True]}, "expected 'hash_ids'"),
        ({"hash_ids": [1, 2**64]}, "expected 'hash_ids'"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(tmp_path, change, expected):
    with pytest.raises(TraceError) as caught:
        load(tmp_path, LINE, LINE | change)
    assert f"a.jsonl', line 2: {expected}" in str(caught.value)


def test_ids_that_are_not_chained_after_all_are_found(tmp_path):
    with pytest.raises(TraceError, match=r"row 1: block 1 follows block 2, and did not before"):
        load(tmp_path, LINE | {"hash_ids": [1, 2]}, LINE | {"hash_ids": [3, 2]})
