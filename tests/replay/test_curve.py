"""The document of hits against capacity: equal to replays, ready for JSON, estimated only where that is said."""

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made import split, traces

from kvpager.errors import BadInput, UnknownName
from kvpager.replay import curve as module
from kvpager.replay.curve import curve, curve_source
from kvpager.replay.prefix import chain
from kvpager.replay.requests import Case, ceiling, ratios, replay_requests
from kvpager.testing.requests import agent_requests, session_requests
from kvpager.traces.requeststore import iter_requests, write_requests

RATIOS = ("block_hit_ratio", "prefix_token_hit_ratio", "request_hit_ratio")


@functools.cache
def sessions():
    return session_requests(200)


def at(document, capacity):
    return next(point for point in document["lru"]["points"] if point["capacity_blocks"] == capacity)


@settings(max_examples=60)
@given(
    trace=traces(), capacities=st.lists(st.integers(0, 14), max_size=5),
    warmup=st.sampled_from([0.0, 0.4]), semantics=st.sampled_from(["block", "prefix"]),
)  # fmt: skip
def test_each_point_is_what_a_replay_of_lru_has(trace, capacities, warmup, semantics):
    if not len(trace.blocks):
        return
    trace = chain(trace)
    document = curve(trace, ["lru"], capacities, semantics=semantics, warmup=warmup, threads=1)
    rows = replay_requests(
        trace,
        [Case("lru" if semantics == "block" else "prefix-lru", size) for size in sorted({*capacities})],
        warmup=warmup,
        threads=1,
    )
    assert [row for row in document["rows"] if row["policy"] in ("lru", "prefix-lru")] == rows
    for row in rows:
        assert {name: at(document, row["capacity_blocks"])[name] for name in RATIOS} == {name: row[name] for name in RATIOS}
    assert document["ceiling"] == ratios(ceiling(trace, document["warmup_requests"]))


def test_a_document_has_all_that_a_chart_needs():
    told = []
    trace = sessions()
    document = curve(
        trace, ["ema", "lru"], [50, 400], block_bytes=1000, warmup=0.2, progress=lambda done, total: told.append((done, total))
    )
    assert json.loads(json.dumps(document)) == document
    assert [(row["policy"], row["capacity_blocks"]) for row in document["rows"]] == [
        (policy, size) for size in (50, 400) for policy in ("prefix-ema", "prefix-lru", "prefix-opt")
    ]
    assert told == [(done, 7) for done in range(1, 8)]
    assert document["semantics"] == "prefix"
    assert "leading run" in document["meaning"]
    assert document["evidence"] == "simulated"
    assert document["trace"]["requests"] == len(trace) - document["warmup_requests"]
    points = document["lru"]["points"]
    sizes = [point["capacity_blocks"] for point in points]
    assert sizes == sorted(set(sizes))
    assert {50, 400, trace.distinct} <= set(sizes)
    assert len(points) <= 400
    assert all(entry["capacity_bytes"] == 1000 * entry["capacity_blocks"] for entry in [*points, *document["rows"]])
    assert "method" in document["lru"]
    assert "sample" not in document["lru"]


def test_reach_is_the_least_capacity_that_has_its_share():
    trace = agent_requests()
    document = curve(trace, [], [], semantics="block")
    assert [entry["share_of_ceiling"] for entry in document["lru"]["reach"]] == [0.5, 0.8, 0.9, 0.95, 0.99]
    for entry in document["lru"]["reach"]:
        goal, size = entry["share_of_ceiling"] * document["ceiling"]["block_hit_ratio"], entry["capacity_blocks"]
        enough, less = replay_requests(trace, [Case("lru", size), Case("lru", size - 1)], optimum=False)
        assert less["block_hit_ratio"] < goal <= enough["block_hit_ratio"] == entry["block_hit_ratio"]


def test_a_cycle_has_its_knee_where_it_fits():
    """A pair of blocks that is at hand half of the time, and a round over 64, which hits from 66 blocks on, or not at all."""
    asked = [block for turn in range(50) for block in [*range(64), *(64 + (turn + i) % 2 for i in range(64))]]
    document = curve(one_request_each(np.array([*asked, *range(66, 5000)], np.int32)), [], [66], semantics="block")
    assert [knee["capacity_blocks"] for knee in document["lru"]["knees"]] == [2, 66]


def test_a_straight_line_has_no_knee():
    x = np.linspace(0, 10, 50)
    assert module._knees(x, x / 10) == []
    assert module._knees(x, np.maximum(0.0, x - 9)) == []


def one_request_each(blocks):
    from kvpager.traces.requests import COLUMNS, RequestTrace

    columns = {name: np.zeros(len(blocks), dtype) for name, dtype in COLUMNS.items()}
    columns["input_tokens"] += 16
    return RequestTrace(**columns, starts=np.arange(len(blocks) + 1), blocks=blocks, block_size=16, chained=False)


@pytest.mark.parametrize("semantics", ["block", "prefix"])
def test_a_sample_is_told_as_such_and_holds(semantics):
    trace = sessions()
    whole, sampled = (curve(trace, [], [100, 1000], semantics=semantics, sample=share) for share in (None, 0.3))
    assert set(sampled["lru"]["sample"]) == {"rate", "seed", "hot_blocks", "cold_blocks", "error"}
    names = RATIOS[:1] if semantics == "block" else RATIOS[:2]
    assert set(sampled["ceiling"]) == set(names)
    for point in sampled["lru"]["points"]:
        true = at(whole, point["capacity_blocks"]) if point["capacity_blocks"] in (100, 1000) else {}
        for name in names:
            assert point[f"{name}_error"] >= 0
            assert abs(point[name] - true.get(name, point[name])) <= point[f"{name}_error"]
    assert json.loads(json.dumps(sampled)) == sampled


def test_long_traces_are_sampled_and_short_ones_are_not(monkeypatch, tmp_path):
    trace = sessions()
    write_requests(tmp_path / "made.parquet", trace)
    assert len(curve_source(tmp_path / "made.parquet")) == len(trace)
    monkeypatch.setattr(module, "SAMPLE_ABOVE", len(trace.blocks) - 1)
    streamed = curve(curve_source(tmp_path / "made.parquet"), ["lru"], [100])
    in_memory = curve(trace, ["fifo"], [100])
    assert streamed["lru"] == in_memory["lru"]
    assert "sample" in streamed["lru"]
    assert streamed["rows"] == []
    assert [row["policy"] for row in in_memory["rows"]] == ["prefix-fifo", "prefix-opt"]
    monkeypatch.setattr(module, "SAMPLE_ABOVE", len(trace.blocks))
    assert "sample" not in curve(trace, [], [100])["lru"]


def test_what_cannot_be_drawn_is_refused(tmp_path):
    trace = sessions()
    with pytest.raises(BadInput, match="ema, fifo cannot be replayed piece by piece"):
        curve(lambda: split(trace, 50), ["fifo", "ema", "lru"], [100])
    with pytest.raises(BadInput, match="give 0 or more"):
        curve(trace, [], [-1])
    with pytest.raises(BadInput, match="choose block or prefix"):
        curve(trace, [], [1], semantics="token")
    with pytest.raises(BadInput, match="chain them first"):
        curve(one_request_each(np.arange(5, dtype=np.int32)), [], [1])
    with pytest.raises(UnknownName, match="lfu"):
        curve(trace, ["lfu"], [1])
    write_requests(tmp_path / "made.parquet", trace)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "made.parquet").read_bytes()[:-100])
    with pytest.raises(BadInput, match="cut short"):
        curve_source(tmp_path / "cut.parquet")
    assert sum(len(piece) for piece in iter_requests(tmp_path / "made.parquet")) == len(trace)
