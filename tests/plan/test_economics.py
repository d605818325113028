"""Fetch or recompute: the note's nine combinations, and the same at this accelerator's real peak."""

import math

import pytest

from kvpager.errors import BadInput
from kvpager.models import resolve
from kvpager.plan.economics import breakeven


@pytest.fixture(scope="module")
def b200(catalogue, llama):
    return breakeven(llama, catalogue.accelerators["b200"])


def test_the_notes_range_is_1_74_to_2_62_orders_and_not_two_to_three(b200):
    note = b200["note"]
    assert {key: round(value, 2) for key, value in note["orders_of_magnitude"].items()} == {"low": 1.74, "high": 2.62}
    values = [cell.value for row in note["ratios"] for cell in row]
    assert values == pytest.approx([206.79, 258.48, 413.57, 109.38, 136.72, 218.75, 54.69, 68.36, 109.38], abs=0.006)
    assert [round(1e6 * time.value, 1) for time in note["fetch_s"]] == [43.3, 81.9, 163.8]
    assert [round(1e3 * time.value, 2) for time in note["recompute_s"]] == [8.96, 11.2, 17.92]
    assert note["lowest"].name == "ratio at 32 GB/s, MFU 50%"  # a ratio names both its inputs
    assert note["highest"].name == "ratio at 121 GB/s, MFU 25%"


def test_the_floor_is_17_5_ms_and_holds_for_every_pass_of_its_own(b200):
    assert b200["note"]["floor_s"].value == pytest.approx(17.5e-3)
    floor = b200["here"]["floor_s"]
    for alone, joined in zip(b200["here"]["alone"]["recompute_s"], b200["here"]["piggybacked"]["recompute_s"], strict=True):
        assert alone.value >= floor.value > joined.value


def test_at_the_real_peak_the_notes_formula_gives_another_range(b200):
    real = b200["here"]["note_formula"]
    assert real["lowest"].value == pytest.approx(54.6875 * 500 / 2250 * 70.5537 / 70, rel=1e-4)
    assert real["orders_of_magnitude"]["low"] < 1.1
    assert real["orders_of_magnitude"]["high"] < 2.0


def test_attention_adds_what_the_note_leaves_out(b200):
    shares = b200["attention_share"]
    assert shares["50,000"].value == pytest.approx(0.936 * 70 / 70.5537, rel=1e-3)
    assert shares["131,072"].value == pytest.approx(2.454 * 70 / 70.5537, rel=1e-3)


def test_nvme_has_a_row_of_its_own(b200):
    row = b200["nvme"]["note"]
    assert row["fetch_s"][0].value == pytest.approx(75e-6 + 5_242_880 / 7e9)
    assert [cell.value for cell in row["ratios"][0]] == pytest.approx([10.874, 13.593, 21.748], abs=0.001)
    assert row["orders_of_magnitude"]["low"] < 1.1


def test_the_four_readings_of_recompute_lie_orders_apart(b200):
    modes = {name: time.value for name, time in b200["modes"].items()}
    assert modes["tail"] == modes["missing_only"]
    assert modes["tail"] * 100 < modes["full_prefix"] < modes["suffix"]


def test_at_the_break_even_rate_fetching_takes_as_long_as_recomputing(b200):
    rate = b200["breakeven"]["bandwidth_bytes_per_s"]
    assert b200["block_bytes"].value / rate.value == pytest.approx(rate.inputs[1].value)
    assert b200["decision"].startswith("fetch")


def test_small_active_experts_need_the_fastest_tiers(catalogue, llama):
    small, large = (breakeven(facts, catalogue.accelerators["b200"]) for facts in (resolve("qwen3-30b-a3b"), llama))
    per_token = "breakeven_position_tokens at 7 GB/s"
    position = {name: found["breakeven"]["position_tokens"]["7 GB/s"] for name, found in (("small", small), ("large", large))}
    assert position["small"].name == per_token
    assert position["small"].value > 0 == position["large"].value
    assert math.isfinite(position["small"].value)


@pytest.mark.parametrize(("tokens", "position"), [(0, 100), (16, -1)])
def test_a_block_that_cannot_be_is_refused(tokens, position, catalogue, llama):
    with pytest.raises(BadInput, match="breakeven"):
        breakeven(llama, catalogue.accelerators["b200"], tokens, position)


def test_a_model_without_growing_kv_has_nothing_to_fetch(catalogue):
    with pytest.raises(BadInput, match="no layer with full attention"):
        breakeven(resolve("mistral-7b-v0.1"), catalogue.accelerators["b200"])
