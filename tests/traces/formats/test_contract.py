"""What every format owes: it recognises its own, says file, line and what was expected, counts what it skips, and streams."""

import gzip
import json

import numpy as np
import pytest
from tests.made import same

from kvpager.errors import BadInput, TraceError, UnknownName
from kvpager.testing.requests import session_requests
from kvpager.traces import pieces as packing
from kvpager.traces.formats import FORMATS, convert, load_requests, recognise
from kvpager.traces.formats.oracle_general import RECORD
from kvpager.traces.formats.prompts import Prompts
from kvpager.traces.requests import gather
from kvpager.traces.requeststore import write_requests


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def moon(time, ids, tokens=None):
    return {"timestamp": time, "input_length": tokens or 512 * len(ids), "output_length": 5, "hash_ids": ids}


def session(*requests):
    return {"id": "s", "block_size": 64, "requests": list(requests)}


def step(t, *ranges):
    return {"t": t, "in": 64 * sum(b - a + 1 for a, b in ranges) + 7, "out": 9, "hash_ranges": [list(r) for r in ranges]}


SIM = {"block_size": 64, "hash_ids": [2001, 2002], "input_length": 128}
GOOD = {
    "mooncake": ("a.jsonl", lines(moon(0, [1, 2]), moon(5, [1, 3], 600), moon(9, [4]))),
    "kvcache-simulator": ("a.jsonl", lines(SIM, SIM | {"hash_ids": ["2001", "x"]}, SIM)),
    "agentic": ("a.jsonl", lines(session(step(0.0, (1, 3)), step(2.5, (1, 5))), session(step(0.0, (1, 2))))),
    "azure": ("a.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.68,374,44\r\n2023-11-16 18:15:50,396,9"),
    "prompts": ("a.jsonl", lines({"prompt": "a" * 40}, {"prompt": "a" * 33 + "b"})),
    "oracle-general": ("a.oracleGeneral", np.array([(0, 5, 1, 3), (0, 6, 1, -1), (4, 5, 1, -1)], RECORD).tobytes()),
}  # fmt: skip
BAD = {
    "mooncake": b"{\n",
    "kvcache-simulator": b"[1]\n",
    "agentic": b'{"block_size": 64, "requests": [{"t": 0, "in": 64, "out": 1, "hash_ranges": [[3, 1]]}]}\n',
    "azure": b"\n2023-11-16 18:15:51,x,1\n",
    "prompts": b'{"prompt": 3}\n',
    "oracle-general": np.array([(9, 7, 0, -1)], RECORD).tobytes(),
}


def as_form(name):
    return Prompts(tokenize=lambda text: list(text.encode())) if name == "prompts" else name


@pytest.fixture(params=sorted(GOOD))
def case(request, tmp_path):
    name, content = GOOD[request.param]
    (tmp_path / name).write_bytes(content)
    return request.param, tmp_path / name


def test_every_format_has_a_case():
    assert sorted(GOOD) == list(FORMATS)


def test_it_recognises_its_own_file(case):
    form, path = case
    assert recognise(path) == form


def test_what_it_says_of_itself_holds(case):
    form, path = case
    trace = load_requests(path, as_form(form))
    trace.check()
    assert trace.source["format"] == form == FORMATS[form].name
    assert trace.source["file"] == path.name
    assert (trace.block_size == 0) == (FORMATS[form].rounding == "none")
    assert trace.chained is FORMATS[form].chained
    json.dumps(dict(trace.source))


def test_a_malformed_record_names_file_place_and_what_was_expected(case):
    form, path = case
    path.write_bytes(path.read_bytes() + BAD[form])
    with pytest.raises(
        TraceError, match=r"'.*a\.\w+', (line|record) \d+: expected .*; mend it, or allow more than 0 malformed"
    ) as caught:
        load_requests(path, as_form(form))
    assert "\n" not in str(caught.value)


def test_malformed_records_are_skipped_up_to_a_number_and_reported(case):
    form, path = case
    right = load_requests(path, as_form(form))
    path.write_bytes(path.read_bytes() + 2 * BAD[form])
    trace = load_requests(path, as_form(form), skip_bad=2)
    assert trace.source["skipped"]["count"] == 2
    assert str(path) in trace.source["skipped"]["first"]
    assert len(trace) == len(right)
    assert (trace.blocks == right.blocks).all()
    with pytest.raises(TraceError, match="allow more than 1 malformed"):
        load_requests(path, as_form(form), skip_bad=1)


def test_a_negative_number_to_skip_is_refused(case):
    form, path = case
    with pytest.raises(BadInput, match="skip_bad is -1"):
        load_requests(path, as_form(form), skip_bad=-1)


def test_gzip_makes_no_difference_and_cut_short_is_one_error(case, tmp_path):
    form, path = case
    if form == "oracle-general":
        pytest.skip("fixed records, read without decompression")
    right, packed = load_requests(path, as_form(form)), tmp_path / "b.gz"
    whole = gzip.compress(path.read_bytes())
    packed.write_bytes(whole)
    trace = load_requests(packed, as_form(form))
    assert (trace.blocks == right.blocks).all()
    for size in range(2, len(whole) - 1):
        packed.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"gzip file '.*b\.gz' is cut short or damaged after line \d: copy it again"):
            load_requests(packed, as_form(form), skip_bad=9)


def test_an_empty_file_is_refused(case):
    form, path = case
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="holds no request"):
        load_requests(path, as_form(form))


def test_a_missing_file_is_refused(case, tmp_path):
    form, _ = case
    with pytest.raises(TraceError, match=r"none' cannot be read \(No such file"):
        load_requests(tmp_path / "none", as_form(form))


def test_it_streams_in_pieces(case, monkeypatch):
    form, path = case
    right = load_requests(path, as_form(form))
    monkeypatch.setattr(packing, "PIECE_ROWS", 1)
    parts = list(convert(path, as_form(form)))
    assert len(parts) == (1 if form == "oracle-general" else len(right))
    assert same(gather(parts), right)


def test_our_own_file_needs_no_format(tmp_path):
    trace, path = session_requests(4), tmp_path / "x"
    write_requests(path, trace)
    assert same(load_requests(path), trace)
    assert same(gather(convert(path)), trace)


def test_a_file_of_no_format_is_refused_with_a_list(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("hello\n")
    with pytest.raises(BadInput, match=r"looks like no format: name one of agentic, azure"):
        load_requests(path)


def test_an_unknown_format_and_an_unknown_setting_are_refused(case):
    form, path = case
    with pytest.raises(UnknownName, match="unknown name 'moncake' among formats: did you mean mooncake"):
        load_requests(path, "moncake")
    with pytest.raises(BadInput, match="does not take 'colour=red'"):
        load_requests(path, f"{form}:colour=red")
