"""The register names what nobody has fitted, with the values that the plug-ins really use."""

import json
from pathlib import Path

import pytest

from kvpager import hardware
from kvpager.claims.derivation import number
from kvpager.claims.findings import constants
from kvpager.claims.ledger import claims
from kvpager.claims.uncalibrated import printed, register, used
from kvpager.plan import assumptions as plan
from kvpager.policies.ema import EMA
from kvpager.policies.placement import Placement
from kvpager.prefetch.blend import RopeEMA

RESULTS = Path(__file__).resolve().parents[2] / "experiments" / "results"
VALUES = {one.symbol: one.value for one in register()}


@pytest.mark.parametrize(
    ("symbol", "value"),
    [
        ("A", "100 positions"),
        ("W", "200 positions"),
        ("D", "100 positions"),
        ("b_d, b_e", [0.6, 0.4]),
        ("alpha", 0.2),
        ("B", "16 tokens"),
        ("head split", ["40 %", "15 %", "25 %", "20 %"]),
        ("hit split", ["97 %", "2.7 %", "0.3 %"]),
        ("w_R, w_E, w_N", [0.25, 0.55, 0.2]),
        ("cut_1", 0.3),
        ("cut_2", 0.6),
    ],
)
def test_what_must_be_in_it(symbol, value):
    assert VALUES[symbol] == value


def test_every_constant_says_what_it_does():
    assert len(VALUES) == len(register())
    for one in register():
        assert one.claim in claims()
        assert one.controls
        assert one.direction
        assert one.used_by


def test_fits_are_those_that_experiments_published():
    assert set(constants()) <= set(VALUES)
    for symbol in ("alpha", "w_R, w_E, w_N", "cut_1", "cut_2", "A"):
        (one,) = [one for one in register() if one.symbol == symbol]
        assert one.calibrated_by == "E7"
        run = json.loads((RESULTS / f"{one.calibrated_by}.json").read_text())
        (entry,) = [entry for entry in run["constants"] if entry["symbol"] == symbol]
        assert {key: one.fitted[key] for key in entry if key != "symbol"} == {key: entry[key] for key in entry if key != "symbol"}
        count = len(one.value) if isinstance(one.value, list) else 1
        assert len(one.fitted["value"]) == len(one.fitted["low"]) == len(one.fitted["high"]) == count
        assert all(low <= high for low, high in zip(one.fitted["low"], one.fitted["high"], strict=True))
        assert f"{one.fitted['value'][0]:.3g}" in one.fitted_text
    assert [one.calibrated_by for one in register() if one.symbol == "MFU"] == [""]


def test_plug_ins_use_the_registered_values():
    assert EMA().alpha == Placement().alpha == VALUES["alpha"]
    assert [*Placement().weights] == VALUES["w_R, w_E, w_N"]
    assert f"{Placement().sink_tokens} positions" == VALUES["A"]
    prefetch = RopeEMA()
    assert [prefetch.rope_weight, prefetch.ema_weight] == VALUES["b_d, b_e"]
    assert f"{prefetch.distance_scale:g} positions" == VALUES["D"]


def test_the_planner_assumes_the_registered_values():
    assumed = plan.DEFAULT
    assert assumed.mfu.value == number(VALUES["MFU"])
    assert assumed.activations_bytes.value == number(VALUES["activations"])
    assert assumed.block_tokens.value == number(VALUES["B"])
    assert {"MFU", "activations", "B"} == {one.symbol for one in used("plan")}


def test_a_system_of_the_notes_has_them_too():
    assert "system note-000-cxl" in {name for one in register() for name in one.used_by}
    named = {name.removeprefix("system ") for one in register() for name in one.used_by if name.startswith("system ")}
    assert named <= set(hardware.load().systems)


def test_a_result_prints_those_it_uses():
    lines = printed("policy ema")
    (line,) = lines
    assert line.startswith("alpha = 0.2: how fast the EMA of attention forgets (the notes' value; fitted by E7: ")
    assert printed("system note-000-offload")[0].endswith("(uncalibrated)")
    assert {one.symbol for one in used("prefetcher blend")} == {"alpha", "W", "D", "b_d, b_e"}
    assert printed("policy lru") == []
    assert len(printed("policy ema", "prefetcher blend")) == 4


def test_it_travels_as_json():
    documents = json.loads(json.dumps([one.to_json() for one in register()]))
    always = {"symbol", "default", "claim", "controls", "direction", "calibrated_by", "used_by"}
    assert set(documents[0]) == always | {"fitted"}
    assert documents[0]["default"] == 0.2
    assert documents[0]["calibrated_by"] == "E7"
    (free,) = [one for one in documents if one["symbol"] == "MFU"]
    assert set(free) == always
    assert free["calibrated_by"] is None
