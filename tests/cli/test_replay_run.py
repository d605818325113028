"""``kvpager replay`` of a run recording: the run's own counts again, and those of runs that were never made."""

import re

import pytest
from tests.toyrun import ToyRun

from kvpager.errors import InvariantError
from kvpager.traces.runstore import RunWriter

REPLAY = ("replay", "run.zarr", "--jobs", "1")
RUN_ROW = {
    "policy", "pool", "granularity", "hbm_fraction", "capacity_units", "dram_units", "units", "selector", "access", "mode",
    "clock", "observe", "warmup_steps", "seed", "steps", "accesses", "block_hits", "block_hit_ratio", "byte_hit_ratio",
    "demand_only_hit_ratio", "read_mass_hit_ratio", "per_tier", "streamed_per_tier", "loads", "kept", "evictions", "demotions",
    "backups", "prefetched", "fetched_units_per_step", "fetched_bytes_per_step", "tiers", "staging_fraction", "realisable",
    "evidence", "labels",
}  # fmt: skip


def save_run(run, path):
    with RunWriter(path, run.header) as writer:
        for event in run.events:
            writer.append(event)
        writer.close(run.document)
    return path


@pytest.fixture
def run(here):
    made = ToyRun(8, "lru", 34, dram=6, prefetcher="previous").run()
    save_run(made, here / "run.zarr")
    return made


def test_a_run_is_replayed_with_its_own_settings(well, run):
    document = well(*REPLAY, "--json").document
    (row,) = document["rows"]
    counts = run.tally.counts
    assert set(row) - {"bound", "bound_kind"} == RUN_ROW | {"prefetcher", "log_parity"}
    assert row["log_parity"] == {"moves": counts.moves, "counts": True}
    assert (row["policy"], row["capacity_units"], row["dram_units"], row["seed"]) == ("lru", 34, 6, 5)
    assert (row["accesses"], row["block_hits"], row["evictions"]) == (counts.accesses, counts.block_hits, counts.evictions)
    assert row["block_hit_ratio"] == row["block_hits"] / row["accesses"]
    assert sum(row["per_tier"].values()) == row["accesses"]
    assert row["tiers"] == run.document["tiers"]
    assert document["trace"]["calls"] == len(run.events)
    assert document["trace"]["complete"] is True
    assert document["seed"] == 5


def test_it_predicts_a_run_that_was_never_recorded(well, run):
    other = ToyRun(8, "ema", 44).run()
    options = ("--policy", "ema", "--capacity", "44", "--dram", "none", "--prefetch", "none")
    (row,) = well(*REPLAY, *options, "--json").document["rows"]
    assert "log_parity" not in row
    counts = other.tally.counts
    found = (row["accesses"], row["block_hits"], row["evictions"], row["loads"])
    assert found == (counts.accesses, counts.block_hits, counts.evictions, counts.loads - counts.stream_loads)
    assert row["tiers"] == other.document["tiers"]


def test_what_a_run_does_not_hold_is_refused(refused, run):
    refused(*REPLAY, "--prefetch", "key-summary", words=["'key-summary'", "key bounds", "choose another"])


def test_policies_and_sizes_make_a_table(well, run):
    answer = well(*REPLAY, "--policy", "lru,blend,belady", "--capacity", "34,60%", "--dram", "6", "--seed", "5")
    assert re.search(r"^ *blend +60\.00 % in HBM", answer.out, re.MULTILINE)
    assert "what the run asked for" in answer.out
    dram = run.recording.units
    rows = well(*REPLAY, "--policy", "lru,blend,belady", "--capacity", "34,60%", "--json").document["rows"]
    assert [row["policy"] for row in rows] == ["lru", "blend", "belady"] * 2
    assert [row["realisable"] for row in rows] == [True, True, False] * 2
    assert [row["capacity_units"] for row in rows] == [34] * 3 + [int(0.6 * dram)] * 3
    assert ["log_parity" in row for row in rows] == [True] + [False] * 5


def test_parity_is_said_in_one_line(well, run):
    out = well(*REPLAY).out
    assert f"log parity: {run.tally.counts.moves} moves identical (lru, 34 units)" in out


def test_processes_change_nothing(well, run):
    call = ("replay", "run.zarr", "--policy", "lru,ema,blend,random", "--json")
    assert well(*call, "--jobs", 1).document["rows"] == well(*call, "--jobs", 2).document["rows"]


def test_a_bound_stands_where_units_are_asked_for_once(well, here):
    single = ToyRun(8, "lru", 34, forks=False).run()
    save_run(single, here / "run.zarr")
    rows = well(*REPLAY, "--policy", "lru,ema,belady", "--json").document["rows"]
    assert all(row["block_hit_ratio"] <= row["bound"] for row in rows)
    assert rows[2]["block_hit_ratio"] == rows[2]["bound"]


@pytest.mark.parametrize("option", ["--selector=dense", "--granularity=layer", "--clock=step", "--observe=all"])
def test_what_was_fixed_when_it_ran_is_refused(refused, run, option):
    refused(*REPLAY, option, words=["'run.zarr' is the recording of a run", f"leave {option.partition('=')[0]} out"])


def test_a_damaged_run_is_refused(refused, run, here):
    (here / "run.zarr" / "000000" / "units" / "c.0").unlink()
    refused(*REPLAY, words=["run.zarr", "000000/units", "record anew"])


def test_more_units_than_there_are_are_refused(refused, run):
    refused(*REPLAY, "--capacity", "100000", words=["100000", "more than all"])


def test_a_run_whose_moves_differ_is_a_broken_law(kvpager, here):
    made = ToyRun(8, "lru", 34).run()
    at = next(i for i, event in enumerate(made.events) if event.kind == "ask" and event.moves)
    made.events[at] = made.events[at]._replace(asks=made.events[at].asks + 1, units=made.events[at].units[::-1].copy())
    save_run(made, here / "run.zarr")
    with pytest.raises(InvariantError, match=f"call {at} of the run, ask"):
        kvpager(*REPLAY)
