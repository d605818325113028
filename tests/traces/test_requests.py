"""A request trace is right in every field, or says in one line which row is not; pieces make the whole."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made import same, split, traces

from kvpager.errors import CapacityError, TraceError
from kvpager.testing.requests import GENERATORS, session_requests
from kvpager.traces import room
from kvpager.traces.requests import COLUMNS, RequestTrace, checked, gather

GOOD = RequestTrace(
    time_s=np.array([0.0, 1.0, 1.0]), session=np.array([0, 0, -1]), parent=np.array([-1, 0, -1]),
    input_tokens=np.array([20, 40, 16]), output_tokens=np.array([1, 0, 5]), tenant=np.array([0, 0, 1], np.int32),
    starts=np.array([0, 2, 4, 5]), blocks=np.array([0, 1, 0, 2, 0], np.int32), block_size=16, chained=True,
    tenants=("a", "b"), source={"file": "x.jsonl"},
)  # fmt: skip


def having(name, row, value):
    array = getattr(GOOD, name).copy()
    array[row] = value
    return {name: array}


WRONG = {
    "time backwards": (having("time_s", 2, 0.5), r"row 2: its time lies before"),
    "time not finite": (having("time_s", 1, np.nan), r"row 1: its time is not a finite"),
    "session": (having("session", 0, -2), r"row 0: its session"),
    "parent later": (having("parent", 1, 1), r"row 1: its parent"),
    "parent below -1": (having("parent", 1, -2), r"row 1: its parent"),
    "no input": (having("input_tokens", 0, 0), r"row 0: it has no input token"),
    "negative output": (having("output_tokens", 0, -1), r"row 0: it has less than 0"),
    "tenant without name": (having("tenant", 2, 2), r"row 2: its tenant is none of the 2"),
    "too long for its blocks": (having("input_tokens", 2, 33), r"row 2: its blocks of 16 tokens"),
    "too short for its blocks": (having("input_tokens", 2, 15), None),
    "shorter than that": (having("input_tokens", 1, 15), r"row 1: its blocks of 16 tokens"),
    "no block size": ({"block_size": 0}, r"has blocks, but a block size of 0"),
    "id skipped": (having("blocks", 3, 3), r"row 1: block ids must be 0, 1, 2"),
    "id negative": (having("blocks", 4, -1), r"row 2: block ids must be"),
    "not chained": (having("blocks", 4, 1), r"row 2: block 1 follows nothing, and did not before"),
    "a column too short": ({"session": GOOD.session[:2]}, r"'session' is int64\[2\], and int64\[3\] is needed"),
    "a column of another type": ({"blocks": GOOD.blocks.astype(np.int64)}, r"'blocks' is int64\[5\], and int32\[5\]"),
    "starts past the end": ({"starts": np.array([0, 2, 4, 6])}, r"'starts' must rise from 0 to the 5"),
    "starts going back": ({"starts": np.array([0, 3, 2, 5])}, r"'starts' must rise"),
    "empty": ({name: getattr(GOOD, name)[:0] for name in (*COLUMNS, "blocks")}, r"holds no request"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_check_names_trace_row_and_remedy(change, message):
    trace = replace(GOOD, **change)
    if message is None:
        trace.check()
        return
    with pytest.raises(TraceError, match=message) as caught:
        trace.check()
    assert "request trace 'x.jsonl'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_that_are_not_chained_may_follow_any_block():
    replace(GOOD, chained=False, **having("blocks", 4, 1)).check()


def test_a_trace_of_lengths_alone_has_no_blocks():
    replace(GOOD, block_size=0, starts=np.zeros(4, np.int64), blocks=np.empty(0, np.int32)).check()


@given(traces())
def test_any_right_trace_passes(trace):
    trace.check()
    assert trace.distinct == len(set(trace.blocks.tolist()))


def first_wrong(trace):
    """The row of the first id that is not known, nor the next; or that follows another block than before."""
    known, parents, row_of = trace.first_block, {}, np.repeat(np.arange(len(trace)), np.diff(trace.starts))
    for at, block in enumerate(trace.blocks.tolist()):
        if not 0 <= block <= known:
            return trace.first_row + row_of[at], "first appearance"
        known = max(known, block + 1)
    for at, block in enumerate(trace.blocks.tolist()):
        before = int(trace.blocks[at - 1]) if at > trace.starts[row_of[at]] else -1
        if block >= trace.first_block and trace.chained and parents.setdefault(block, before) != before:
            return trace.first_row + row_of[at], "did not before"
    return None


@settings(max_examples=300)
@given(trace=traces(), rows=st.integers(1, 4), at=st.integers(0, 30), value=st.integers(-2, 12), chained=st.booleans())
def test_wrong_ids_are_found_where_they_are(trace, rows, at, value, chained):
    for piece in split(trace, rows):
        blocks = piece.blocks.copy()
        blocks[at : at + 1] = value
        changed = replace(piece, blocks=blocks, chained=chained)
        wrong = first_wrong(changed)
        if wrong is None:
            changed.check()
        else:
            with pytest.raises(TraceError, match=f"row {wrong[0]}: .*{wrong[1]}"):
                changed.check()


@given(traces(), st.integers(1, 4))
def test_pieces_make_the_whole_again(trace, rows):
    assert same(gather(split(trace, rows)), trace)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pieces: pieces[1:], "a piece begins at row 2, block 3, where row 0, block 0 goes on"),
        (lambda pieces: [pieces[0], replace(pieces[1], time_s=np.zeros(1))], "row 2: its time lies before"),
        (lambda pieces: [pieces[0], replace(pieces[1], chained=False)], "block size or chaining change"),
        (lambda pieces: [], "the trace holds no request"),
    ],
    ids=["missing", "time", "chaining", "none"],
)
def test_pieces_that_do_not_fit_are_refused(change, message):
    with pytest.raises(TraceError, match=message):
        gather(change(list(split(GOOD, 2))), "the trace")


def test_a_chain_that_breaks_within_a_piece_is_found():
    first, second = split(replace(session_requests(5)), 10**6), None
    whole = next(first)
    second = replace(whole, blocks=np.roll(whole.blocks, 1))
    with pytest.raises(TraceError):
        list(checked([second]))


def test_what_does_not_fit_into_memory_is_refused_beforehand(monkeypatch):
    monkeypatch.setattr(room, "free_memory_bytes", lambda: 100)
    with pytest.raises(CapacityError, match=r"big.parquet needs .* of memory, and 100 B are free: .*iter_requests"):
        gather(split(GOOD, 2), "big.parquet")


def test_free_memory_is_known_here():
    assert 2**20 < room.free_memory_bytes() < 2**60


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("name", GENERATORS)
def test_made_up_traces_are_right_seeded_and_reuse_blocks(name, partial):
    trace, again = GENERATORS[name](partial=partial, seed=3), GENERATORS[name](partial=partial, seed=3)
    trace.check()
    assert trace.chained
    assert same(trace, again)
    assert not same(trace, GENERATORS[name](partial=partial, seed=4))
    reuse = 1 - trace.distinct / len(trace.blocks)
    assert 0.3 < reuse < 0.99
    counts = np.diff(trace.starts)
    assert (counts == (trace.input_tokens + partial * (trace.block_size - 1)) // trace.block_size).all()


def test_a_session_continues_its_own_request():
    trace = session_requests(10)
    children = np.flatnonzero(trace.parent >= 0)
    assert (trace.session[children] == trace.session[trace.parent[children]]).all()
    for child in children:
        mine, before = (trace.blocks[trace.starts[row] : trace.starts[row + 1]] for row in (child, trace.parent[child]))
        full = trace.input_tokens[trace.parent[child]] // trace.block_size
        assert (mine[:full] == before[:full]).all()


def test_fields_are_documented_columns():
    fields = {part.name for part in dataclasses.fields(RequestTrace)}
    assert set(COLUMNS) < fields
