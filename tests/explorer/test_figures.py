"""Figures are picked by their place in a document, and only what is a number is one."""

from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.figures import at, figures

DOCUMENT = {
    "rows": [{"ratio": 0.25, "time": Quantity(2.0, "s", frozenset({Evidence.ASSUMPTION})), "never": Quantity(float("inf"), "s")}],
    "found": {"value": 3, "unit": "%", "evidence": "measured", "low": None, "high": None},
    "words": "not derivable",
}


def test_a_place_is_keys_and_positions():
    assert at(DOCUMENT, "rows.0.ratio") == 0.25
    assert at(DOCUMENT, "rows.1.ratio") is None
    assert at(DOCUMENT, "words.ratio") is None


def test_numbers_quantities_and_printed_quantities_become_figures():
    named = {"a": "rows.0.ratio", "b": "rows.0.time", "c": "found", "d": "rows.0.never", "e": "words", "f": "absent"}
    found = figures("kvpager x", DOCUMENT, named, labels={Evidence.SIMULATED, Evidence.MEASURED})
    assert [(one.label, one.quantity.value, one.quantity.unit) for one in found] == [
        ("a", 0.25, "1"),
        ("b", 2.0, "s"),
        ("c", 3, "%"),
    ]
    assert [one.quantity.evidence for one in found] == [Evidence.SIMULATED, Evidence.ASSUMPTION, Evidence.MEASURED]
    assert {one.command for one in found} == {"kvpager x"}
    assert found[0].key == "rows.0.ratio"
