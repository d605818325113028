"""Tiers in seconds: counted by hand, conserved, and by the planner's own formula."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.prompts import prompts, tiers_of

from kvpager.analysis.recompute import pass_flops
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.plan.economics import breakeven
from kvpager.plan.load import load_of
from kvpager.plan.reuse import Recomputing, block_fetch_s, fetch_or_recompute, medium_fetch_s
from kvpager.plan.wear import wear
from kvpager.replay.hierarchy import Hierarchy, TierSpec, replay_hierarchy
from kvpager.testing.requests import session_requests


class Linear:
    """A block takes as many seconds as there are tokens before it, and one more a token; half and twice that at the ends."""

    inputs = (Quantity(1.0, "1", frozenset({Evidence.ASSUMPTION}), name="speed", low=0.5, high=2.0),)

    def seconds(self, positions, tokens, end):
        return (positions + tokens) * {"value": 1.0, "slow": 2.0, "fast": 0.5}[end]


def replayed(contents, *sizes, **options):
    return replay_hierarchy(prompts(contents), Hierarchy(tiers_of(*sizes), "exclusive", **options))


def test_seconds_counted_by_hand():
    """Blocks of 4 tokens take 4, 8, 12 - 1 seconds; a fetch from the second tier takes 6, so the first block is computed."""
    found = replayed([[1, 2, 3], [9], [1, 2, 3]], 1, 9, semantics="prefix")
    got = fetch_or_recompute(found, {"tier 0": 0.0, "tier 1": 6.0}, Linear())
    assert found.served.tolist() == [-1, -1, -1, -1, 1, 1, 1]
    assert (got["fetched_blocks"], got["declined_blocks"], got["missing_blocks"], got["recomputed_blocks"]) == (2, 1, 4, 5)
    assert got["no_reuse_s"] == 2 * (4 + 8 + 11) + 3
    assert (got["fetch_s"], got["recompute_s"]) == (12, 23 + 3 + 4)
    assert got["saved_s"] == got["no_reuse_s"] - got["total_s"] == 7
    assert got["always_fetch_s"] == 18 + 23 + 3
    assert got["range"]["declined_blocks"] == [0, 3]  # at twice and at half the seconds of computing
    rough = Quantity(6.0, "s", frozenset({Evidence.VENDOR_SPEC}), low=3.0, high=12.0)
    wide = fetch_or_recompute(found, {"tier 0": 0.0, "tier 1": rough}, Linear())
    assert wide["range"]["saved_s"] == [0, 5 + 13 + 19]  # slow fetches beside fast computing, and the other way round
    whole = fetch_or_recompute(found, {"tier 0": 0.0, "tier 1": 6.0}, Linear(), rule="suffix")
    assert (whole["fetched_blocks"], whole["total_s"]) == (3, 44)  # 18 for all three, where computing all takes 23
    assert whole["evidence"] == "assumption"


def test_a_block_behind_a_gap_is_out_of_reach_of_todays_engines():
    found = dataclasses.replace(replayed([[1, 2, 3]], 9), served=np.array([0, -1, 0], np.int8))
    got = {rule: fetch_or_recompute(found, {"tier 0": 0.0}, Linear(), rule=rule) for rule in ("missing_only", "suffix")}
    assert [one["out_of_reach_blocks"] for one in got.values()] == [0, 1]
    assert [one["recompute_s"] for one in got.values()] == [8, 8 + 11]


@given(
    contents=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=20),
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=3), fetch=st.lists(st.integers(0, 30), min_size=3, max_size=3),
    rule=st.sampled_from(["missing_only", "suffix"]), policy=st.sampled_from(["lru", "fifo"]), warmup=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_every_block_is_fetched_or_computed_and_the_sums_say_so(contents, sizes, fetch, rule, policy, warmup):
    found = replay_hierarchy(prompts(contents), Hierarchy(tiers_of(*sizes, policy=policy)), warmup=warmup)
    times = {f"tier {number}": float(fetch[number]) for number in range(len(sizes))}
    got = fetch_or_recompute(found, times, Linear(), rule=rule)
    accesses = int(found.trace.starts[-1] - found.trace.starts[found.first])
    assert got["fetched_blocks"] + got["recomputed_blocks"] == accesses
    assert got["recomputed_blocks"] == got["declined_blocks"] + got["out_of_reach_blocks"] + got["missing_blocks"]
    for key in ("fetched_blocks", "declined_blocks", "out_of_reach_blocks", "fetch_s"):
        assert sum(tier[key] for tier in got["tiers"]) == got[key]
    assert got["total_s"] == got["fetch_s"] + got["recompute_s"] == got["no_reuse_s"] - got["saved_s"]
    assert got["total_s"] <= min(got["no_reuse_s"], got["always_fetch_s"])
    for key, (low, high) in got["range"].items():
        assert low <= got[key] <= high or (rule == "suffix" and key == "declined_blocks")
    json.dumps(got)


@pytest.fixture(scope="module")
def on_b200(catalogue, llama):
    return Recomputing(load_of(llama), catalogue.accelerators["b200"])


def test_recomputing_is_the_planners_formula(catalogue, llama, on_b200):
    """The block of `kvpager breakeven`: same tokens, same place, same seconds, at every end of its range."""
    expected = breakeven(llama, catalogue.accelerators["b200"], 16, 50_000)
    at, tokens = np.array([50_000.0]), np.array([16.0])
    alone = expected["here"]["alone"]["recompute_s"][1]
    mine = dataclasses.replace(on_b200, alone=True, mfu=dataclasses.replace(on_b200.mfu, low=0.4, high=0.4))
    assert mine.seconds(at, tokens, "value")[0] == pytest.approx(alone.value)
    assert [mine.seconds(at, tokens, end)[0] for end in ("fast", "slow")] == pytest.approx(list(alone.ends))
    joined = expected["here"]["piggybacked"]["recompute_s"][1]
    assert on_b200.seconds(at, tokens, "value")[0] == pytest.approx(joined.value)


def test_blocks_of_a_prompt_add_up_to_its_prefill(on_b200):
    """Computing every block behind those before it is one long pass."""
    load, chip = on_b200.load, on_b200.accelerator
    places = np.arange(64) * 512.0
    blocks = on_b200.seconds(places, np.full(64, 512.0), "value").sum()
    group = load.groups[0]
    flops = pass_flops(64 * 512, 0, load.active_params.value, group.layers, load.q_heads, group.attended_dim)
    assert blocks == pytest.approx(flops / (chip.bf16_flops_per_s.value * on_b200.mfu.value))


def test_a_slow_tier_is_declined_and_the_labels_tell_what_the_seconds_rest_on(catalogue, on_b200):
    asked = session_requests(40)
    found = replay_hierarchy(asked, Hierarchy([TierSpec("hbm", 50), TierSpec("nvme")]))
    size = int(on_b200.load.full_bytes_per_token * asked.block_size)
    drive = medium_fetch_s(catalogue.tiers["nvme-gen4"], size)
    assert drive.value == pytest.approx(75e-6 + size / catalogue.tiers["nvme-gen4"].read_at(size).value)
    fast = fetch_or_recompute(found, {"hbm": 0.0, "nvme": drive}, on_b200)
    assert fast["declined_blocks"] == 0
    assert fast["evidence"] == "assumption"
    assert {"simulated", "vendor-spec", "assumption"} <= set(fast["labels"])
    tape = block_fetch_s("nvme", size, Quantity(1e6, "B/s", frozenset({Evidence.MEASURED})))
    slow = fetch_or_recompute(found, {"hbm": 0.0, "nvme": tape}, on_b200)
    below = int((found.served == 1).sum())
    assert (slow["declined_blocks"], slow["fetched_blocks"]) == (below, int((found.served == 0).sum()))
    assert slow["always_fetch_s"] > slow["no_reuse_s"] > slow["total_s"]


def test_seconds_that_cannot_be_are_refused():
    found = replayed([[1]], 1)
    with pytest.raises(BadInput, match="from tier 'tier 0'"):
        fetch_or_recompute(found, {}, Linear())
    for wrong in (-1.0, float("nan")):
        with pytest.raises(BadInput, match="give 0 or more"):
            fetch_or_recompute(found, {"tier 0": wrong}, Linear())
    loose = dataclasses.replace(found, trace=dataclasses.replace(found.trace, chained=False))
    with pytest.raises(BadInput, match="prefix-chained"):
        fetch_or_recompute(loose, {"tier 0": 0.0}, Linear())
    with pytest.raises(BadInput, match="choose missing_only or suffix"):
        fetch_or_recompute(found, {"tier 0": 0.0}, Linear(), rule="full")


def test_wear_counted_by_hand(catalogue):
    """3 blocks of 1 GB in 2 s: 1.5 GB/s, into two drives of 7.68 TB and 14 PB endurance each."""
    found = replay_hierarchy(prompts([[1], [2], [3]]), Hierarchy([TierSpec("top", 1), TierSpec("nvme")]), block_bytes=10**9)
    got = wear(found, catalogue.tiers["nvme-gen4"], count=2, write_amplification=2.0)
    assert (got["written_bytes"], got["trace_s"]) == (3 * 10**9, 2.0)
    assert got["written_bytes_per_day"]["value"] == pytest.approx(1.5e9 * 86_400)
    assert got["drive_writes_per_day"]["value"] == pytest.approx(1.5e9 * 86_400 / (2 * 7.68e12))
    assert got["years_to_endurance"]["value"] == pytest.approx(2 * 14e15 / 1.5e9 / 2 / 31_557_600)
    assert got["write_utilisation"]["value"] == pytest.approx(1.5 / 8.4)
    assert got["evidence"] == "assumption"  # the write amplification is one
    json.dumps(got)
    memory = wear(found, catalogue.tiers["ddr5-4800-8ch"])
    assert "years_to_endurance" not in memory


def test_without_writes_drives_never_wear_out(catalogue):
    found = replay_hierarchy(
        prompts([[1], [1]]), Hierarchy([TierSpec("top", 1), TierSpec("nvme")], write_policy="demotion"), block_bytes=1
    )
    assert wear(found, catalogue.tiers["nvme-gen4"])["years_to_endurance"]["value"] == "never"


def test_wear_that_cannot_be_told_is_refused(catalogue):
    drive, tiers = catalogue.tiers["nvme-gen4"], Hierarchy([TierSpec("top", 1), TierSpec("nvme")])
    asked = prompts([[1], [2]])
    with pytest.raises(BadInput, match="replay with block_bytes"):
        wear(replay_hierarchy(asked, tiers), drive)
    still = dataclasses.replace(asked, time_s=np.zeros(2))
    with pytest.raises(BadInput, match="has no times"):
        wear(replay_hierarchy(still, tiers, block_bytes=1), drive)
    with pytest.raises(BadInput, match="do not fit 1 x"):
        wear(replay_hierarchy(asked, tiers, block_bytes=10**13), drive)
    found = replay_hierarchy(asked, tiers, block_bytes=1)
    for options in ({"count": 0}, {"write_amplification": 0.5}):
        with pytest.raises(BadInput, match="at least 1"):
            wear(found, drive, **options)
