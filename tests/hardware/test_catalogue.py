"""The built-in catalogue keeps its own rules, and a user's file that breaks one is refused with place and remedy."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kvpager.errors import BadInput, CatalogueError, PhysicalBoundError, UnknownName
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import bus_limit_bytes_per_s, load
from kvpager.hardware.parts import SizedRate

HEADING = 'label = "vendor-spec"\nsource = "a data sheet"\ndate = "2026-11-29"\n'
LINK = f"""
[links.mine]
title = "my link"
bus = "pcie-5"
lanes = 16
{HEADING}
bandwidth_bytes_per_s = {{ value = 60, unit = "GB/s" }}
efficiency = {{ value = 0.9, unit = "1" }}
"""
DRIVE = f"""
[tiers.mine]
title = "my drive"
kind = "nvme"
bus = "pcie-4"
lanes = 4
{HEADING}
capacity_bytes = {{ value = 4, unit = "TB" }}
read_bytes_per_s = {{ value = 7, unit = "GB/s" }}
write_bytes_per_s = {{ value = 5, unit = "GB/s" }}
"""
PRICE = f"""
[prices.mine]
value = 100
low = 90
high = 120
unit = "USD"
{HEADING}
"""


def values(thing, place):
    """Every quantity of an entry, with where it stands; references to other entries are visited by themselves."""
    if isinstance(thing, Quantity):
        yield place, thing
        return
    for field in fields(thing):
        value = getattr(thing, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Quantity):
                yield f"{place}.{field.name}", part
            elif isinstance(part, SizedRate):
                yield f"{place}.{field.name} at {part.size_bytes}", part.rate_bytes_per_s


def every_value():
    catalogue = load()
    for section in ("prices", "links", "tiers", "accelerators", "parts", "systems"):
        for name, thing in getattr(catalogue, section).items():
            yield from values(thing, f"{section}.{name}")


def write(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_value_of_the_catalogue_has_unit_label_source_and_date():
    found = dict(every_value())
    assert len(found) > 250
    for place, value in found.items():
        assert value.unit, place
        assert len(value.labels) == 1, place
        assert re.fullmatch(r".{3,}\(\d{4}(-\d\d){0,2}\)", value.source), f"{place}: {value.source}"
        assert value.value > 0, place


def test_every_price_is_a_range():
    for name, price in load().prices.items():
        assert price.low is not None, name
        assert price.high is not None, name
        if not name.startswith("note-000"):
            assert price.is_range, f"{name}: a point hides how prices move"


def test_what_is_from_memory_is_not_called_measured():
    for place, value in every_value():
        if "from memory" in value.source:
            assert value.evidence <= Evidence.VENDOR_SPEC, place
        assert value.evidence not in (Evidence.MEASURED, Evidence.SIMULATED), f"{place}: nothing here was measured by kvpager"


@pytest.mark.parametrize(
    ("name", "hbm_gb", "bf16_tflops", "fp8_tflops", "watts"),
    [
        ("a100-80gb", 85.9, 312, None, 400),
        ("h100", 85.5, 989, 1979, 700),
        ("h200", 150.8, 989, 1979, 700),
        ("h20", 102.6, 148, 296, 400),
        ("b200", 191.5, 2250, 4500, 1000),
        ("l40s", 48.3, 362, 733, 350),
        ("rtx-4090", 25.76, 165, 330, 450),
        ("mi300x", 206.1, 1307, 2615, 750),
    ],
)
def test_accelerators(name, hbm_gb, bf16_tflops, fp8_tflops, watts):
    part = load().accelerators[name]
    assert part.hbm_bytes.value == pytest.approx(hbm_gb * 1e9, rel=1e-3)
    assert part.bf16_flops_per_s.value == bf16_tflops * 1e12
    assert part.power_w.value == watts
    assert (part.fp8_flops_per_s and part.fp8_flops_per_s.value) == (fp8_tflops and fp8_tflops * 1e12)
    assert part.hbm_marketed_bytes.value < part.hbm_bytes.value * 1.01, "sold in GB, present in GiB"


@pytest.mark.parametrize(
    ("bus", "lanes", "gb_per_s"),
    [
        ("pcie-4", 16, 31.5),
        ("pcie-5", 16, 63.0),
        ("pcie-5", 4, 15.75),
        ("pcie-6", 16, 121.0),
        ("cxl-2", 8, 31.5),
        ("cxl-3", 8, 60.5),
    ],
)
def test_bus_limits(bus, lanes, gb_per_s):
    assert bus_limit_bytes_per_s(bus, lanes).value == pytest.approx(gb_per_s * 1e9, rel=5e-4)


def test_a_users_file_adds_and_overrides_key_by_key(tmp_path):
    override = f'[links.pcie-5-x16]\n{HEADING}efficiency = {{ value = 0.7, unit = "1" }}\n'
    catalogue = load([write(tmp_path, LINK), write(tmp_path, override, "second.toml")])
    assert catalogue.links["mine"].reached_bytes_per_s().value == pytest.approx(54e9)
    assert catalogue.links["pcie-5-x16"].efficiency.value == 0.7
    assert catalogue.links["pcie-5-x16"].bandwidth_bytes_per_s.value == 63e9, "what was not overridden stays"
    assert catalogue.accelerators["h100"].host_link.efficiency.value == 0.7, "references see the override"
    assert load().links["pcie-5-x16"].efficiency.value == 0.86, "the built-in catalogue is untouched"


def test_an_override_must_bring_its_own_source(tmp_path):
    with pytest.raises(CatalogueError, match=r"links\.pcie-5-x16\.efficiency: has no label"):
        load([write(tmp_path, '[links.pcie-5-x16]\nefficiency = { value = 0.7, unit = "1" }\n')])


def test_rates_by_size_are_interpolated(tmp_path):
    sizes = '\nread_by_size = [{ size = "64KiB", value = 2, unit = "GB/s" }, { size = "1MiB", value = 6, unit = "GB/s" }]\n'
    drive = load([write(tmp_path, DRIVE + sizes)]).tiers["mine"]
    assert drive.read_at(4096).value == 2e9
    assert drive.read_at(256 * 1024).value == pytest.approx(4e9), "half way in the logarithm"
    assert drive.read_at(64 * 1024**2).value == 6e9
    assert drive.write_at(4096).value == 5e9, "no rates by size: the sustained one"


REFUSALS = [
    # what is wrong, text to replace, its replacement, what the message says
    ("ambiguous unit", 'value = 4, unit = "TB"', 'value = 4, unit = "T"', r"tiers\.mine\.capacity_bytes: unit 'T' is ambiguous"),
    ("bare G", 'value = 7, unit = "GB/s"', 'value = 7, unit = "G"', r"read_bytes_per_s: unit 'G' is ambiguous.*write it out"),
    ("bits", 'value = 7, unit = "GB/s"', 'value = 56, unit = "Gb/s"', r"unit 'Gb/s' is ambiguous or unknown.*GB/s"),
    ("text", '{ value = 4, unit = "TB" }', '"1T"', r"'1T' has no unit: write \{ value = 1, unit = \"GB\""),
    ("text as value", 'value = 4, unit = "TB"', 'value = "4T", unit = "TB"', r"value = '4T' is no number"),
    ("unit left out", 'value = 4, unit = "TB"', "value = 4", r"capacity_bytes: has no unit"),
    ("bare number", '{ value = 4, unit = "TB" }', "4", r"capacity_bytes: 4 has no unit"),
    ("wrong kind of unit", 'value = 7, unit = "GB/s"', 'value = 7, unit = "GB"', r"per_s: is in B, but must be in B/s"),
    ("zero", 'value = 5, unit = "GB/s"', 'value = 0, unit = "GB/s"', r"write_bytes_per_s: value = 0 must be above zero"),
    ("negative", 'value = 4, unit = "TB"', 'value = -4, unit = "TB"', r"value = -4 must be above zero"),
    ("infinite", 'value = 4, unit = "TB"', 'value = inf, unit = "TB"', r"must be above zero"),
    ("unlabelled", 'label = "vendor-spec"\n', "", r"capacity_bytes: has no label: every value needs"),
    ("no source", 'source = "a data sheet"\n', "", r"has no source"),
    ("empty source", 'source = "a data sheet"\n', 'source = ""\n', r"has no source"),
    ("no date", 'date = "2026-11-29"\n', "", r"has no date"),
    ("no such day", 'date = "2026-11-29"\n', 'date = "yesterday"\n', r"date 'yesterday' is no date: write 2026-11-29"),
    ("unknown label", '"vendor-spec"', '"certain"', r"evidence label 'certain' is unknown: use one of illustrative"),
    ("half a range", 'value = 4, unit = "TB"', 'value = 4, low = 3, unit = "TB"', r"capacity_bytes: .*a range needs both ends"),
    ("outside its range", 'value = 4,', "value = 4, low = 5, high = 6,", r"capacity_bytes: .*lies outside its range"),
    ("unknown key", "read_bytes_per_s =", "reads_bytes_per_s =", r"unknown key 'reads_bytes_per_s'.*read_bytes_per_s"),
    ("unknown key of a value", 'value = 4, unit', 'value = 4, about = 1, unit', r"capacity_bytes: unknown key 'about'"),
    ("missing key", 'capacity_bytes = { value = 4, unit = "TB" }', "", r"tiers\.mine: has no capacity_bytes: it needs"),
    ("unknown kind", 'kind = "nvme"', 'kind = "nvm"', r"kind: 'nvm' is unknown: did you mean nvme"),
    ("unknown bus", 'bus = "pcie-4"', 'bus = "pcie-9"', r"bus 'pcie-9' is unknown: use one of pcie-3"),
    ("unknown section", "[tiers.mine]", "[media.mine]", r"unknown section 'media': did you mean"),
    ("lanes", "lanes = 4", "lanes = 0", r"lanes: 0 must be at least 1"),
    ("not TOML", "[tiers.mine]", "[tiers.mine", r"is not TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_a_bad_file_is_refused(tmp_path, old, new, message):
    assert old in DRIVE
    load([write(tmp_path, DRIVE)])
    with pytest.raises(BadInput, match=message) as caught:
        load([write(tmp_path, DRIVE.replace(old, new), "bad.toml")])
    assert "bad.toml" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match=r"none\.toml.*cannot be read"):
        load([tmp_path / "none.toml"])


@pytest.mark.parametrize("missing", ["low = 90\n", "high = 120\n"])
def test_a_price_must_be_a_range(tmp_path, missing):
    with pytest.raises(CatalogueError, match=r"prices\.mine: has no range: give low and high"):
        load([write(tmp_path, PRICE.replace(missing, ""))])


def test_a_price_must_have_a_date(tmp_path):
    with pytest.raises(CatalogueError, match=r"prices\.mine: has no date: prices move"):
        load([write(tmp_path, PRICE.replace('date = "2026-11-29"\n', ""))])


def test_an_efficiency_above_one_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match=r"efficiency: is 1\.1, but an efficiency is a share"):
        load([write(tmp_path, LINK.replace("value = 0.9", "value = 1.1"))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINK.replace("value = 60,", "value = 64,"), r"links\.mine: 64 GB/s is more than pcie-5-x16 .* 63\.02 GB/s"),
        (LINK.replace("value = 60,", "value = 60, low = 50, high = 70,"), r"links\.mine: 70 GB/s is more than pcie-5-x16"),
        (LINK + 'by_size = [{ size = "1MiB", value = 64, unit = "GB/s" }]\n', r"links\.mine: 64 GB/s is more than pcie-5-x16"),
        (DRIVE.replace("value = 7,", "value = 14,"), r"tiers\.mine: 14 GB/s is more than pcie-4-x4 .* 7\.877 GB/s"),
        (DRIVE + 'mixed_bytes_per_s = { value = 16, unit = "GB/s" }\n', r"16 GB/s is more than two directions of pcie-4-x4"),
        (DRIVE + 'read_by_size = [{ size = "1MiB", value = 8, unit = "GB/s" }]\n', r"8 GB/s is more than pcie-4-x4"),
    ],
)
def test_a_rate_above_its_bus_is_refused(tmp_path, text, message):
    with pytest.raises(PhysicalBoundError, match=message):
        load([write(tmp_path, text)])


def test_both_directions_together_may_exceed_one(tmp_path):
    drive = load([write(tmp_path, DRIVE + 'mixed_bytes_per_s = { value = 15, unit = "GB/s" }\n')]).tiers["mine"]
    assert drive.mixed_bytes_per_s.value == 15e9


def test_a_reference_to_nothing_names_the_near_ones(tmp_path):
    with pytest.raises(UnknownName, match=r"tiers\.mine: unknown name 'nvmee' among prices: did you mean nvme"):
        load([write(tmp_path, DRIVE + 'price_usd_per_byte = "nvmee"\n')])


def test_a_price_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CatalogueError, match=r"price 'b200' is in USD, but must be in USD/B"):
        load([write(tmp_path, DRIVE + 'price_usd_per_byte = "b200"\n')])


@pytest.mark.parametrize(
    ("section", "name", "near"), [("accelerators", "h1000", "h100"), ("systems", "note-00-cxl", "note-000-cxl")]
)
def test_an_unknown_name_is_answered_with_near_ones(section, name, near):
    with pytest.raises(UnknownName, match=rf"unknown name {name!r} among {section}: did you mean .*{near}"):
        getattr(load(), section)[name]


@pytest.mark.parametrize("size", ["", "1M", "0B"])
def test_a_rate_by_size_needs_a_clear_size(tmp_path, size):
    with pytest.raises(CatalogueError, match=r"tiers\.mine.*size"):
        load([write(tmp_path, DRIVE + f'read_by_size = [{{ size = "{size}", value = 5, unit = "GB/s" }}]\n')])


PAGE = Path(__file__).resolve().parents[2] / "docs" / "hardware.md"


def test_the_file_of_the_docs_loads_and_does_what_they_say(tmp_path):
    (text,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    catalogue = load([write(tmp_path, text)])
    system = catalogue.systems["our-box"]
    assert system.bandwidth("nvme").name == "nvme read bandwidth, limited by endpoints"
    assert system.bandwidth("nvme").value == pytest.approx(2 * 15.75e9 * 0.8)
    assert catalogue.prices["h100"].ends == (24_000, 24_000)
    assert "price of network card" in system.left_out()


def test_the_docs_list_every_system():
    _, page = PAGE.read_text(encoding="utf-8").split("\n## Systems\n")
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| .* \| ([a-z-]+) \|$", page, re.MULTILINE)
    assert listed == [(name, system.strategy) for name, system in load().systems.items()]
