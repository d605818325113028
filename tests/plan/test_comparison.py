"""The notes' two systems to the dollar, then what their comparison left out; and the same service behind every number."""

import pytest

from kvpager.errors import BadInput
from kvpager.plan.comparison import compare


@pytest.fixture(scope="module")
def notes(catalogue, llama):
    systems = [catalogue.systems["note-000-offload"], catalogue.systems["note-000-cxl"]]
    return compare(systems, llama, 131_072, 16, read_fraction=0.0555)


def test_the_notes_sums_come_out_to_the_dollar(notes):
    base, proposed = (row["owning"] for row in notes["rows"])
    assert (base["capex_usd"].value, proposed["capex_usd"].value) == (160_000, 103_000)
    assert (round(base["tco_usd"].value), round(proposed["tco_usd"].value)) == (177_219, 111_389)
    assert (base["power_w"].value, proposed["power_w"].value) == (3900, 1900)
    saving = notes["rows"][1]["saving_of_owning"]
    assert {key: round(100 * value.value) for key, value in saving.items()} == {"capex_usd": 36, "tco_usd": 37, "power_w": 51}


def test_then_it_says_what_was_left_out(notes):
    for left in notes["left_out"].values():
        text = " ".join(left)
        for word in ("host server", "baseboard", "staff", "failures", "price of the rest"):
            assert word in text
    memory = notes["rows"][0]["memory"]
    assert memory["dram_bytes"].value == 2048e9  # which the note's memory row leaves out


def test_each_system_is_bought_as_often_as_the_service_level_asks(notes):
    for row in notes["rows"]:
        copies, at_slo = row["serving_all"]["copies"], row["answers"]["users_at_slo"]
        assert copies.value == -(-16 // at_slo.value)
        assert copies.value > 1  # at 131,072 tokens and 100 ms one of neither is enough
        for key, one in row["owning"].items():
            assert row["serving_all"][key].value == copies.value * one.value
            assert row["serving_all"][key].ends[1] >= row["serving_all"][key].value
    assert notes["cheapest"].startswith("not separable")  # where HBM's content is unknown


def test_a_cheapest_system_is_named_only_if_the_ranges_part_it(catalogue, llama):
    names = ["b200x4-tp", "b200-recompute"]
    found = compare([catalogue.systems[name] for name in names], llama, 131_072, 8)
    low, high = (row["serving_all"]["tco_usd"].ends for row in found["rows"])
    assert found["cheapest"] == "b200x4-tp" or low[1] >= high[0]


def test_without_reads_the_tiered_system_is_not_ranked(catalogue, llama):
    found = compare([catalogue.systems["note-000-cxl"], catalogue.systems["b200x4-tp"]], llama, 131_072, 8)
    assert found["cheapest"].startswith("not derivable: note-000-cxl")
    assert found["rows"][0]["serving_all"].startswith("not derivable")


@pytest.mark.parametrize("names", [[], ["b200-hbm"], ["b200-hbm", "b200-hbm"]])
def test_one_system_is_no_comparison(names, catalogue, llama):
    with pytest.raises(BadInput, match="at least two different systems"):
        compare([catalogue.systems[name] for name in names], llama, 4096, 1)
