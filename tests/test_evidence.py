"""Law 9: labels never improve. And ranges are never hidden."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput, InvariantError
from kvpager.evidence import Evidence, Quantity, combine, derive, propagate, weakest

labels = st.frozensets(st.sampled_from(Evidence))


@given(st.lists(labels, min_size=1, max_size=5), st.sampled_from(Evidence))
def test_a_result_carries_every_label_and_is_never_stronger_than_an_input_or_its_method(inputs, method):
    result = Quantity(1.0, "1", combine(*inputs, [method]))
    assert result.labels == frozenset.union(*inputs, {method})
    assert result.evidence <= method
    for group in inputs:
        assert result.evidence <= min(group, default=Evidence.MEASURED)
    assert result.evidence in result.labels


@given(labels, labels)
def test_adding_an_input_never_strengthens(some, more):
    if some:
        assert weakest(combine(some, more)) <= weakest(some)


def test_the_order_is_that_of_the_design():
    assert [evidence.label for evidence in sorted(Evidence)] == [
        "illustrative",
        "assumption",
        "external-literature",
        "vendor-spec",
        "analytical",
        "simulated",
        "emulated",
        "measured",
    ]


def test_a_number_without_a_label_is_merely_illustrative():
    assert Quantity(1.0, "1").evidence is Evidence.ILLUSTRATIVE


@given(st.sampled_from(Evidence))
def test_labels_read_back(evidence):
    assert Evidence.of(evidence.label) is evidence


@pytest.mark.parametrize("label", ["", "MEASURED", "vendor_spec", "proven"])
def test_an_unknown_label_is_refused_with_the_known_ones(label):
    with pytest.raises(BadInput, match=r"illustrative, assumption, .*, measured"):
        Evidence.of(label)


def test_json_says_value_unit_and_evidence_and_leaves_out_what_is_not_set():
    assert Quantity(2.0, "s", frozenset({Evidence.MEASURED})).to_json() == {"value": 2.0, "unit": "s", "evidence": "measured"}
    both = Quantity(2.0, "s", frozenset({Evidence.SIMULATED, Evidence.ASSUMPTION}), "a + b", "a paper").to_json()
    assert both["evidence"] == "assumption"
    assert both["labels"] == ["assumption", "simulated"]
    assert (both["formula"], both["source"]) == ("a + b", "a paper")


@st.composite
def ranged(draw, name="x"):
    low, value, high = sorted(draw(st.tuples(*[st.floats(0.01, 1e6)] * 3)))
    return Quantity(value, "1", draw(labels), name=name, low=low, high=high)


@given(ranged("bytes"), ranged("rate"), st.floats(0, 1), st.floats(0, 1))
def test_a_propagated_range_holds_every_value_that_the_inputs_allow(size, rate, a, b):
    result = propagate("time_s", "s", "bytes / rate", lambda x, y: x / y, [size, rate])
    low, high = result.ends
    assert low <= result.value <= high
    inside = (size.low + a * (size.high - size.low)) / (rate.low + b * (rate.high - rate.low))
    assert low * (1 - 1e-9) <= inside <= high * (1 + 1e-9)
    assert (low, high) == (size.low / rate.high, size.high / rate.low)
    assert result.labels == size.labels | rate.labels | {Evidence.ANALYTICAL}


@given(st.lists(ranged(), min_size=1, max_size=4))
def test_a_range_cannot_be_dropped_on_the_way(inputs):
    if any(part.is_range for part in inputs):
        with pytest.raises(InvariantError, match=r"total .* range, .*propagate"):
            derive("total", sum(part.value for part in inputs), "1", "sum", inputs)
    widened = propagate("total", "1", "sum", lambda *values: sum(values), inputs)
    assert (widened.low is not None) == any(part.is_range for part in inputs)
    assert widened.ends == (pytest.approx(sum(part.low for part in inputs)), pytest.approx(sum(part.high for part in inputs)))


def test_a_range_holds_its_value_and_has_two_ends():
    with pytest.raises(BadInput, match="both ends"):
        Quantity(1.0, "s", name="t", low=0.5)
    with pytest.raises(BadInput, match=r"t: 3.0 s lies outside its range 1.0 to 2.0"):
        Quantity(3.0, "s", name="t", low=1.0, high=2.0)


def test_the_explanation_has_a_line_a_step_with_units_labels_and_sources_and_repeats_nothing():
    weights = Quantity(140e9, "bytes", frozenset({Evidence.ASSUMPTION}), source="note 000", name="weights_bytes")
    rate = Quantity(8e12, "bytes/s", frozenset({Evidence.VENDOR_SPEC}), name="hbm", low=7.7e12, high=8e12)
    floor = propagate("floor_s", "s", "weights_bytes / hbm", lambda w, b: w / b, [weights, rate])
    twice = propagate("two_s", "s", "floor_s + floor_s", lambda a, b: a + b, [floor, floor])
    assert twice.explain() == [
        "two_s = 35 ms (35 ms to 36.4 ms) = floor_s + floor_s  [assumption]",
        "  floor_s = 17.5 ms (17.5 ms to 18.2 ms) = weights_bytes / hbm  [assumption]",
        "    weights_bytes = 140 GB  [assumption; note 000]",
        "    hbm = 8 TB/s (7.7 TB/s to 8 TB/s)  [vendor-spec]",
        "  floor_s = 17.5 ms (17.5 ms to 18.2 ms) (above)",
    ]
    assert floor.to_json() == {
        "value": 0.0175,
        "unit": "s",
        "evidence": "assumption",
        "low": 0.0175,
        "high": 140e9 / 7.7e12,
        "name": "floor_s",
        "labels": ["assumption", "vendor-spec", "analytical"],
        "formula": "weights_bytes / hbm",
        "inputs": {
            "weights_bytes": {"value": 140e9, "unit": "bytes", "evidence": "assumption"},
            "hbm": {"value": 8e12, "unit": "bytes/s", "evidence": "vendor-spec", "low": 7.7e12, "high": 8e12},
        },
    }
