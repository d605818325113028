"""Prompts become blocks that are equal where their texts and all before are, and that give no text away."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import first_seen, same

from kvpager.errors import BadInput, TraceError
from kvpager.traces.formats import load_requests
from kvpager.traces.formats.prompts import Prompts
from kvpager.traces.requeststore import write_requests

PLAIN = Prompts(block_size=4, tokenize=lambda text: list(text.encode()))


def load(folder, *records, form=PLAIN):
    path = folder / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return load_requests(path, form)


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=6))
def test_a_block_is_its_tokens_and_all_before(tmp_path_factory, texts):
    trace = load(tmp_path_factory.mktemp("p"), *({"prompt": text} for text in texts))
    prefixes = [text[:end] for text in texts for end in range(4, len(text) + 1, 4)]
    numbers: dict[str, int] = {}
    assert trace.blocks.tolist() == [numbers.setdefault(prefix, len(numbers)) for prefix in prefixes]
    assert trace.input_tokens.tolist() == [len(text) for text in texts]


def test_sessions_tenants_and_times(tmp_path):
    trace = load(
        tmp_path,
        {"prompt": "hello you", "session": "secret-name", "tenant": "A", "time_s": 1.5, "output_tokens": 3},
        {"prompt": "other"},
        {"prompt": "hello you too", "session": "secret-name", "tenant": "B", "time_s": 9},
    )
    assert trace.session.tolist() == [0, -1, 0]
    assert trace.parent.tolist() == [-1, -1, 0]
    assert [trace.tenants[i] for i in trace.tenant] == ["A", "", "B"]
    assert trace.time_s.tolist() == [1.5, 1.5, 9.0]
    assert trace.output_tokens.tolist() == [3, 0, 0]


def test_nothing_of_text_session_or_key_is_stored(tmp_path):
    text, key = "the quick brown fox jumps", b"key-that-nobody-may-know"
    trace = load(tmp_path, {"prompt": text, "session": "secret-name"}, form=replace(PLAIN, key=key))
    write_requests(tmp_path / "t.parquet", trace)
    content = (tmp_path / "t.parquet").read_bytes() + repr(trace.source).encode()
    assert not any(word in content for word in (b"quick", b"secret", key, key.hex().encode()))


def test_the_hash_is_keyed():
    tokens = np.arange(8, dtype="<u4")
    one, two = (replace(PLAIN, key=key)._hashes(tokens) for key in (b"1", b"2"))
    assert not (one == two).any()
    assert (one == replace(PLAIN, key=b"1")._hashes(tokens)).all()


def test_the_key_decides_nothing_that_is_kept(tmp_path):
    records = [{"prompt": "abcdabcd"}, {"prompt": "abcdxxxx"}]
    assert same(load(tmp_path, *records), load(tmp_path, *records))
    assert load(tmp_path, *records).blocks.tolist() == first_seen([5, 6, 5, 7])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": 5}, "expected 'prompt', a text"),
        ({"prompt": ""}, "expected 'prompt', a text of at least one token"),
        ({"prompt": "private", "session": 1.5}, "expected 'session', a text or whole number"),
        ({"prompt": "private", "tenant": 1}, "expected 'session'"),
        ({"prompt": "private", "time_s": "private"}, "expected 'time_s', a number, not a text"),
        ({"prompt": "private", "output_tokens": "private"}, "expected 'output_tokens'"),
    ],
    ids=str,
)
def test_a_wrong_line_is_named_without_its_text(tmp_path, record, expected):
    with pytest.raises(TraceError) as caught:
        load(tmp_path, {"prompt": "hello"}, record)
    assert f"a.jsonl', line 2: {expected}" in str(caught.value)
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (Prompts(), "give the tokenizer of the model"),
        (replace(PLAIN, block_size=0), "block_size 0"),
        (replace(PLAIN, key=bytes(65)), "key of 65 bytes"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, form, expected):
    with pytest.raises(BadInput, match=expected):
        load(tmp_path, {"prompt": "hello"}, form=form)
