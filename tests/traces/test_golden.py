"""The public traces, counted: what their papers, libCacheSim and kvcache-simulator count, too."""

import numpy as np
import pytest
from tests.foreign import foreign_trace

from kvpager.traces.formats import convert, load_requests
from kvpager.traces.requests import gather
from kvpager.traces.requeststore import read_requests, write_requests


@pytest.mark.parametrize(
    ("name", "requests", "accesses", "distinct", "late_tokens", "late_hits"),
    [
        ("conversation", 12_031, 288_500, 182_790, 67_915_607, 27_038_068),
        ("synthetic", 3_993, 121_877, 43_924, 36_552_394, 31_535_563),
    ],
)
def test_mooncake(tmp_path, name, requests, accesses, distinct, late_tokens, late_hits):
    trace = load_requests(foreign_trace(f"mooncake_{name}_trace.jsonl.gz"))
    assert (len(trace), len(trace.blocks), trace.distinct) == (requests, accesses, distinct)
    late = len(trace) // 2  # kvcache-simulator counts the second half, and its infinite cache gives the ceiling
    assert int(trace.input_tokens[late:].sum()) == late_tokens
    places = np.arange(len(trace.blocks)) - np.repeat(trace.starts[:-1], np.diff(trace.starts))
    tokens = np.minimum(512, np.repeat(trace.input_tokens, np.diff(trace.starts)) - 512 * places)
    assert int((tokens * prefix_hits(trace))[trace.starts[late] :].sum()) == late_hits
    assert (trace.block_size, trace.chained) == (512, True)
    write_requests(tmp_path / "t.parquet", trace)
    assert (read_requests(tmp_path / "t.parquet").blocks == trace.blocks).all()


def test_azure():
    trace = load_requests(foreign_trace("azure2023_conv.csv.gz"))
    assert (len(trace), len(trace.blocks)) == (19_366, 0)
    assert 3500 < trace.time_s[-1] - trace.time_s[0] < 3600


def prefix_hits(trace):
    """Blocks of each request that an infinite cache holds as its prefix: ids are chained, so known ones come first."""
    known = np.maximum.accumulate(np.concatenate([[-1], trace.blocks]))[:-1]
    return trace.blocks <= known


def test_agentic_sessions_reuse_what_they_should():
    trace = load_requests(foreign_trace("agentic_coding.ranges.jsonl.gz"))
    assert (len(trace), int(trace.session.max()) + 1, trace.block_size) == (24_015, 355, 64)
    assert len(trace.blocks) == 47_061_278
    assert round(float(prefix_hits(trace).mean()), 3) == 0.963
    assert trace.chained  # which loading has checked


@pytest.mark.long
def test_agentic_sessions_side_by_side_hold_the_same_accesses():
    form = "agentic:view=interleaved,start=poisson"
    trace = gather(convert(foreign_trace("agentic_coding.ranges.jsonl.gz"), form))
    assert (len(trace), len(trace.blocks), trace.distinct) == (24_015, 47_061_278, 1_727_499)
    assert (np.diff(trace.time_s) >= 0).all()
    assert not (np.diff(trace.session) >= 0).all()
