"""Systems: which limit binds, against sums by hand; the notes' two systems, to the dollar."""

from dataclasses import replace

import pytest

from kvpager.errors import BadInput, CatalogueError, UnknownName
from kvpager.evidence import Evidence
from kvpager.hardware import load
from kvpager.hardware.system import STRATEGIES


@pytest.fixture(scope="module")
def systems():
    return load().systems


@pytest.mark.parametrize(
    ("name", "capex", "watts", "tco"), [("note-000-cxl", 103_000, 1900, 111_389), ("note-000-offload", 160_000, 3900, 177_219)]
)
def test_the_notes_systems_to_the_dollar(systems, name, capex, watts, tco):
    system = systems[name]
    assert system.capex_usd().value == capex
    assert system.power_w().value == watts
    kwh = system.power_w().value / 1000 * 3 * 8760 * system.pue.value
    assert round(system.capex_usd().value + kwh * system.electricity_usd_per_kwh.value) == tco
    assert system.capex_usd().evidence is Evidence.ASSUMPTION, "the split is a reconstruction"
    assert any("host" in missing for missing in system.left_out())
    assert any("baseboard" in missing for missing in system.left_out())


def test_the_notes_four_endpoints_sit_behind_one_link(systems):
    (cxl, _) = systems["note-000-cxl"].tiers
    assert cxl.per_link().value == 64e9
    assert cxl.aggregate().value == 256e9, "what the note adds up"
    assert cxl.capacity_bytes().value == 1024e9
    bandwidth = systems["note-000-cxl"].bandwidth("cxl")
    assert bandwidth.value == 64e9, "what the link it draws can carry"
    assert bandwidth.name == "cxl read bandwidth, limited by upstream"
    assert cxl.bottleneck() == "upstream"


def test_the_realistic_system_by_hand(systems):
    system = systems["b200-host-cxl"]
    pcie = 63e9 * 0.86
    assert system.bandwidth("dram").value == pytest.approx(min(pcie, 2 * 490e9))
    assert system.bandwidth("cxl").value == pytest.approx(min(pcie, 4 * 31.5e9 * 0.85, 4 * 24e9))
    assert system.bandwidth("nvme", write=True).value == pytest.approx(4 * 9e9)
    assert system.tier("nvme").bottleneck(write=True) == "media"
    assert system.bandwidth("hbm").value == pytest.approx(8e12 * 0.8)
    assert system.tier("cxl").latency_s().value == pytest.approx(10e-6 + 275e-9)


@pytest.mark.parametrize(
    ("endpoints", "upstreams", "binds", "gb_per_s"),
    [
        (1, 1, "media", 24),
        (2, 1, "media", 48),
        (3, 1, "upstream", 54.18),
        (8, 2, "upstream", 108.36),
        (4, 4, "media", 96),
    ],
)
def test_the_limit_moves_with_what_is_added(systems, endpoints, upstreams, binds, gb_per_s):
    path = replace(systems["b200-host-cxl"].tier("cxl"), count=endpoints, upstream_count=upstreams)
    system = replace(systems["b200-host-cxl"], tiers=(path,))
    assert path.bottleneck() == binds
    assert system.bandwidth("cxl").value == pytest.approx(gb_per_s * 1e9)
    assert f"limited by {binds}" in system.bandwidth("cxl").name


def test_endpoint_links_can_bind(systems):
    slow = load().links["pcie-4-x4"]
    path = replace(systems["b200-host-cxl"].tier("cxl"), link=slow)
    assert path.bottleneck() == "endpoints"
    assert path.limits()["endpoints"].value == pytest.approx(4 * 7.87e9 * 0.92)


def test_ranges_and_labels_travel(systems):
    bandwidth = systems["b200-host-cxl"].bandwidth("cxl")
    assert bandwidth.ends == pytest.approx((63e9 * 0.85, 63e9 * 0.87))
    assert bandwidth.evidence is Evidence.ASSUMPTION, "its endpoints' efficiency is assumed"
    lines = "\n".join(bandwidth.explain())
    for word in ("cxl upstream", "cxl media", "cxl endpoints", "pcie-5-x16 efficiency", "agentic-kvc"):
        assert word in lines


@pytest.mark.parametrize("name", load().systems)
def test_every_system_answers(systems, name):
    system = systems[name]
    for tier in ("hbm", *(path.name for path in system.tiers)):
        assert system.bandwidth(tier).value > 0
        assert system.capacity_bytes(tier).value > 0
    low, high = system.capex_usd().ends
    assert low <= system.capex_usd().value <= high
    assert system.power_w().value >= system.accelerators * system.accelerator.power_w.value
    assert system.missing, "no bill is complete: say what it leaves out"
    if not name.startswith("note-000"):
        assert system.capex_usd().is_range
        assert not [item for item in system.bill if item.price_usd is None or item.power_w is None]
        assert any(item.name == f"accelerators/{system.accelerator.name}" for item in system.bill)
        assert {path.medium.name for path in system.tiers} <= {item.name.partition("/")[2] for item in system.bill}
        on_bill = {item.name: item.quantity for item in system.bill}
        assert all(on_bill[f"tiers/{path.medium.name}"] == path.count for path in system.tiers), "what is used is paid for"


def test_the_comparisons_that_note_000_lacks_are_there(systems):
    assert {systems[f"b200x{n}-tp"].tp for n in (2, 4, 8)} == {2, 4, 8}
    assert systems["b200-fp8"].weights_dtype == systems["b200-fp8"].kv_dtype == "fp8"
    assert {system.strategy for system in systems.values()} == set(STRATEGIES)
    assert systems["b200x3-offload"].replicas == 3


def test_impossible_systems_are_refused(systems):
    with pytest.raises(BadInput, match=r"3 accelerators cannot be split into groups of tp = 2"):
        replace(systems["b200x3-offload"], tp=2)
    with pytest.raises(UnknownName, match=r"strategy 'magic' is unknown: use one of resident"):
        replace(systems["b200-hbm"], strategy="magic")
    with pytest.raises(UnknownName, match=r"has no path to a tier 'dran': its tiers are hbm, dram, and"):
        systems["b200-offload"].bandwidth("dran")


@pytest.mark.parametrize(
    ("bill", "message"),
    [
        ('{ "accelerators/b2000" = 1 }', r"systems\.mine.* unknown name 'b2000' among accelerators: did you mean b200"),
        ('{ "b200" = 1 }', r"'b200' is no item: write accelerators/NAME"),
        ('{ "accelerators/b200" = -1 }', r"quantity of 'accelerators/b200' is -1: give a number above zero"),
    ],
)
def test_a_bad_bill_is_refused(tmp_path, bill, message):
    head = '[systems.mine]\ntitle = "mine"\naccelerator = "b200"\naccelerators = 1\n'
    text = f'{head}electricity_usd_per_kwh = "electricity"\npue = "pue"\nbill = {bill}\n'
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((CatalogueError, UnknownName), match=message):
        load([path])
