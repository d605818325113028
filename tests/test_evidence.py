"""Law 9: labels never improve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity, combine, weakest

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
