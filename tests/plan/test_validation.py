"""The planner against the published H20 measurements: what it says, and that the page says the same."""

import re
from pathlib import Path

import pytest

from kvpager.evidence import Evidence
from kvpager.plan.validation import against_h20

PAGE = Path(__file__).resolve().parents[2] / "docs" / "validation.md"


@pytest.fixture(scope="module")
def found(catalogue):
    return against_h20(catalogue)


def test_what_is_fixed_is_fixed_beforehand_from_other_measurements_than_those_predicted(found):
    fixed, checks = found
    assert fixed["fixed_s"].value == 0.042
    assert 0.9 < fixed["mfu"].value < 1.0
    assert fixed["rate_1k"].value == pytest.approx(53.65e9)
    assert fixed["rate_64k"].value == pytest.approx(54.38e9)
    measured = {check.measured.name for check in checks}
    for check in checks:
        used, stack = set(), [check.predicted]
        while stack:
            part = stack.pop()
            used.add(part.name)
            stack += part.inputs
        assert not used & (measured - {check.predicted.name}), check.name
        assert check.measured not in (fixed["mfu"].inputs)
        assert check.measured.evidence is Evidence.EXTERNAL_LITERATURE


def test_the_errors_are_what_they_are_and_the_page_prints_them(found):
    _, checks = found
    errors = {check.name: round(100 * check.error) for check in checks}
    assert errors == {"64k CPU hit": -41, "1k miss": 20, "1k CPU hit": -23}
    page = PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (64k CPU hit|1k miss|1k CPU hit) \|.*\| ([−+]\d+) % \|", page, re.MULTILINE))
    assert {name: int(text.replace("−", "-")) for name, text in rows.items()} == errors
    for check in checks:
        assert f"{1000 * check.predicted.value:.3g} ms" in page
        assert f"{1000 * check.measured.value:.3g} ms" in page
