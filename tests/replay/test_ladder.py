"""The ladder, its subsets, the row and the sweep."""

from pathlib import Path

import pytest
from tests.driving import small_recording
from tests.traces.replayed import observation

from kvpager.errors import BadInput, CapacityError, UnknownName
from kvpager.policies import make_policy
from kvpager.replay.attention import capacity_units, warmup_steps
from kvpager.replay.bounds import dense_bound, top_mass_oracle
from kvpager.replay.ladder import FACTORS, RUNGS, ladder, rung_case, shapley
from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import Setting, make_stream
from kvpager.replay.study import access_definitions, curves, heatmap
from kvpager.replay.sweep import Source, sweep
from kvpager.selectors.dense import Dense
from kvpager.selectors.topp_mass import TopPMass
from kvpager.traces.attention import AttentionWriter

RECORDING = small_recording(4, layers=2, heads=2, context=120, steps=24)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The recording on disk."""
    path = tmp_path_factory.mktemp("trace") / "small.zarr"
    with AttentionWriter(path, RECORDING.header, steps=RECORDING.steps, prefill_mass=RECORDING.prefill_mass) as writer:
        for step in range(RECORDING.steps):
            writer.append(observation(RECORDING, step))
    return Source(path)


def test_the_ladder_has_five_rungs_each_under_its_own_bound(source):
    seen = []
    document = ladder(source, hbm_fraction=0.2, sizes=(0.2, 0.4), subsets=True, jobs=1, progress=lambda *now: seen.append(now))
    assert [row["name"] for row in document["rungs"]] == ["lru", "sink", "ema", "per_head", "prefetch"]
    assert (document["hbm_fraction"], document["pool"]) == (0.2, "global")
    assert {(group["hbm_fraction"], group["pool"]) for group in document["others"]} == {
        (0.4, "global"),
        (0.2, "equal"),
        (0.4, "equal"),
    }
    for group in (document, *document["others"]):
        for row in group["rungs"]:
            assert row["block_hit_ratio"] <= row["bound"] + 1e-9
            assert row["granularity"] == ("head" if row["name"] in ("per_head", "prefetch") else "layer")
    for subset in document["subsets"]:
        values = {frozenset(entry["factors"]): entry["block_hit_ratio"] for entry in subset["rows"]}
        assert len(values) == 16
        assert sum(subset["shapley"].values()) == pytest.approx(values[frozenset(FACTORS)] - values[frozenset()])
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_shapley_gives_additive_factors_their_own_worth():
    worth = {"sink": -0.05, "ema": 0.3, "per_head": 0.1, "prefetch": 0.01}
    from itertools import combinations

    value = {frozenset(group): sum(worth[f] for f in group) for k in range(5) for group in combinations(FACTORS, k)}
    assert shapley(value) == pytest.approx(worth)


def test_rungs_differ_by_one_factor_each():
    cases = [rung_case(factors, 0.1, "global") for *_, factors in RUNGS]
    assert [case.policy for case in cases] == ["lru", "lru+sink:100", "ema+sink:100", "ema+sink:100", "ema+sink:100"]
    assert [case.prefetcher for case in cases] == [None, None, None, None, "blend"]


def test_a_sweep_in_processes_equals_one_after_the_other(source):
    cases = [Case(policy, 0.3, pool, bound=False) for pool in ("global", "equal") for policy in ("lru", "ema", "blend")]
    assert sweep(source, cases, jobs=2) == sweep(source, cases, jobs=1)


def test_a_relative_path_is_found_by_workers_that_started_elsewhere(source, monkeypatch):
    cases = [Case(policy, 0.3, bound=False) for policy in ("lru", "lfu", "ema", "blend")]
    before = sweep(source, cases, jobs=2)  # the workers stay, in the folder of now
    monkeypatch.chdir(source.path.parent)
    assert sweep(Source(Path(source.path.name)), cases, jobs=2) == before


def test_dense_attention_hits_at_most_the_resident_share_whatever_the_policy():
    stream = make_stream(RECORDING, Dense())
    rows = {policy: run_case(stream, Case(policy, 0.25)) for policy in ("random", "ema", "blend", "sink-recent", "belady")}
    assert all(row["block_hit_ratio"] <= row["dense_bound"] + 1e-9 for row in rows.values())
    assert rows["belady"]["block_hit_ratio"] == pytest.approx(rows["belady"]["dense_bound"], abs=0.01)
    units = capacity_units(stream, 0.25, "global")
    assert dense_bound(stream, units, 0) == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("granularity", ["head", "layer"])
@pytest.mark.parametrize("pool", ["global", "layer", "equal"])
def test_no_policy_holds_more_mass_than_the_oracle(granularity, pool):
    stream = make_stream(RECORDING, TopPMass(), Setting(granularity))
    for policy in ("lru", "ema", "belady", "last-step"):
        row = run_case(stream, Case(policy, 0.3, pool, granularity=granularity))
        assert row["mass_hit_ratio"] <= row["top_mass_oracle"] + 1e-3
    whole = capacity_units(stream, 1.0, pool)
    assert top_mass_oracle(stream, whole, pool, 0) == pytest.approx(1, abs=2e-3)


def test_everything_resident_hits_everything():
    stream = make_stream(RECORDING, TopPMass())
    for pool in ("global", "layer", "equal"):
        row = run_case(stream, Case("lru", 1.0, pool))
        assert row["block_hit_ratio"] == row["step_hit_ratio"] == row["byte_hit_ratio"] == 1
        assert row["mass_hit_ratio"] == pytest.approx(1, abs=2e-3)
        assert row["moves_per_step"] == row["fetched_bytes_per_step"] == 0


def test_the_study_has_curves_definitions_and_one_heads_residency(source):
    rows = curves(source, sizes=(0.001, 0.3), policies=("ema", "belady"), pools=("global",), jobs=1)
    assert [(row["policy"], row["hbm_fraction"]) for row in rows] == [("ema", 0.3), ("belady", 0.3)]
    entries = access_definitions(source, hbm_fraction=0.3)
    values = {entry["name"]: entry["value"] for entry in entries}
    assert (
        values["every block read (dense attention)"]
        < values["top-95 % mass set of the KV head"]
        < values["top-90 % mass set of the KV head"]
    )
    assert entries[-1]["metric"] == "mass_hit_ratio"
    picture = heatmap(source, hbm_fraction=0.3)
    assert len(picture["mass"]) == len(picture["resident"]) == RECORDING.steps
    assert {len(line) for line in picture["resident"]} == {RECORDING.blocks}
    assert all(line[RECORDING.open_block(step)] == 1 for step, line in enumerate(picture["resident"]))


@pytest.mark.parametrize(
    ("share", "pool", "message"),
    [
        (0, "global", "impossible"),
        (-0.1, "global", "impossible"),
        (1.1, "equal", "impossible"),
        (0.01, "equal", "give at least"),
        (0.5, "globl", "unknown pool"),
    ],
)
def test_sizes_that_cannot_work_are_refused(share, pool, message):
    with pytest.raises((CapacityError, BadInput), match=message):
        capacity_units(make_stream(RECORDING, TopPMass()), share, pool)


def test_the_least_size_that_is_named_works():
    stream = make_stream(RECORDING, TopPMass())
    for pool in ("global", "layer", "equal"):
        with pytest.raises(CapacityError) as refusal:
            capacity_units(stream, 0.001, pool)
        least = float(str(refusal.value).rsplit("give at least ", 1)[1].rstrip(" %")) / 100
        run_case(stream, Case("blend", least * 1.01, pool))


@pytest.mark.parametrize(
    ("text", "message"),
    [("emma", "did you mean ema"), ("ema+snk", "choose among"), ("ema+sink:x", "whole number"), ("ema:alfa=1", "alpha")],
)
def test_misspelt_policies_are_explained(text, message):
    with pytest.raises((UnknownName, BadInput), match=message):
        make_policy(text)


def test_the_warm_up_is_a_quarter_and_at_most_64_steps():
    assert [warmup_steps(n) for n in (4, 32, 192, 1000)] == [1, 8, 48, 64]
