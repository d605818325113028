"""Agent sessions: ranges, nests and both views."""

import json

import numpy as np
import pytest

from kvpager.errors import BadInput, CapacityError, TraceError
from kvpager.traces import room
from kvpager.traces.formats import load_requests


def step(t, *ranges, left=7):
    return {"t": t, "in": 64 * sum(b - a + 1 for a, b in ranges) + left, "out": 9, "hash_ranges": [list(r) for r in ranges]}


NEST = {"t": 1.0, "type": "subagent", "requests": [step(0.0, (50, 51)), step(2.0, (50, 51), (60, 60))]}
FIRST = {"block_size": 64, "requests": [step(0.0, (1, 3)), NEST, step(2.0, (1, 2), (8, 9)), step(4.0)]}
SECOND = {"block_size": 64, "requests": [step(0.0, (1, 2)), step(3.5, (1, 3))]}


def load(tmp_path, *sessions, form="agentic"):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, sessions)))
    return load_requests(path, form)


def rows(trace):
    return [trace.blocks[a:b].tolist() for a, b in zip(trace.starts, trace.starts[1:], strict=False)]


def test_sessions_one_after_the_other(tmp_path):
    trace = load(tmp_path, FIRST, SECOND)
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 7.5]
    assert trace.session.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert trace.parent.tolist() == [-1, -1, 0, 1, 2, -1, 5]  # the sub-agent has a line of its own
    assert rows(trace) == [[0, 1, 2], [3, 4], [0, 1, 5, 6], [3, 4, 7], [], [8, 9], [8, 9, 10]]
    assert trace.source["start"] == "each when the last one ended: the file does not say"


def test_sessions_side_by_side(tmp_path):
    trace = load(tmp_path, FIRST, SECOND, form="agentic:view=interleaved")
    assert trace.time_s.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0, 3.5, 4.0]
    assert trace.session.tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert trace.parent.tolist() == [-1, -1, -1, 0, 2, 1, 3]
    assert rows(trace)[:2] == [[0, 1, 2], [3, 4]]
    assert (trace.source["view"], trace.source["start"]) == ("interleaved", "together")


def test_random_starts_are_seeded_and_stated(tmp_path):
    form = "agentic:view=interleaved,start=poisson,mean_gap_s=10,seed=5"
    trace, again = load(tmp_path, *[SECOND] * 200, form=form), load(tmp_path, *[SECOND] * 200, form=form)
    assert (trace.time_s == again.time_s).all()
    starts = np.array([trace.time_s[trace.session == session].min() for session in range(200)])
    assert (np.diff(starts) > 0).all()
    assert 8 < np.diff(starts).mean() < 12
    assert trace.source["seed"] == 5
    assert trace.source["mean_gap_s"] == 10


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hash_ranges": [[3, 1]]}, "expected 'hash_ranges', a list of [first, last]"),
        ({"hash_ranges": [[1, 2, 3]]}, "expected 'hash_ranges'"),
        ({"hash_ranges": [[1, 2**32]]}, "expected 'hash_ranges'"),
        ({"hash_ranges": "1-2"}, "expected 'hash_ranges'"),
        ({"in": 128}, "expected 2 blocks of 64 tokens for a length of 128, not 3"),
        ({"t": -1.0}, "expected 't', seconds since the start of the agent, not -1.0"),
        ({"requests": []}, None),
    ],
    ids=str,
)
def test_a_wrong_request_is_named_by_its_line(tmp_path, change, expected):
    session = {"block_size": 64, "requests": [step(0.0, (1, 3)) | change, step(1.0, (1, 3))]}
    if expected is None:
        assert len(load(tmp_path, SECOND, session)) == 3
        return
    with pytest.raises(TraceError) as caught:
        load(tmp_path, SECOND, session)
    assert f"a.jsonl', line 2: {expected}" in str(caught.value)


def test_a_session_without_requests_is_malformed(tmp_path):
    with pytest.raises(TraceError, match="line 1: expected 'requests', with at least one request"):
        load(tmp_path, {"block_size": 64, "requests": []})


def test_a_nest_without_end_is_malformed(tmp_path):
    nest = step(0.0, (1, 1))
    for _ in range(100):
        nest = {"t": 0.0, "requests": [nest]}
    with pytest.raises(TraceError, match="line 1: expected sub-agents within sub-agents 32 deep at most"):
        load(tmp_path, {"block_size": 64, "requests": [nest]})


def test_a_request_that_memory_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_memory_bytes", lambda: 2**30)
    with pytest.raises(CapacityError, match=r"the request in row 0 needs 128 GiB of memory"):
        load(tmp_path, {"block_size": 64, "requests": [step(0.0, (0, 2**32 - 1))]})


def test_two_block_sizes_do_not_mix(tmp_path):
    other = {"block_size": 32, "requests": [{"t": 0, "in": 32, "out": 0, "hash_ranges": [[1, 1]]}]}
    with pytest.raises(TraceError, match="blocks of 64 and 32 tokens; convert them apart"):
        load(tmp_path, FIRST, other)


@pytest.mark.parametrize("setting", ["view=sideways", "start=never", "mean_gap_s=-1.0"])
def test_settings_that_mean_nothing_are_refused(tmp_path, setting):
    with pytest.raises(BadInput, match="choose sessions or interleaved, together or poisson, and at least 0"):
        load(tmp_path, FIRST, form=f"agentic:{setting}")
