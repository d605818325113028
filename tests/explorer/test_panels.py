"""Every part's pictures keep what the report's charts keep: evidence, theme, width, size."""

import json

import pytest
from tests.explorer.parts.test_planned import rows

from kvpager.evidence import Evidence
from kvpager.explorer.part import in_order

LABELS = {label.label for label in Evidence}
PANELS = {part.title: part for part in in_order()}


@pytest.mark.parametrize("part", PANELS.values(), ids=PANELS)
def test_a_picture_serves_every_page(part, chosen):
    for panel in part.screen(chosen).panels:
        spec = panel.spec("what it shows")
        assert spec["width"] == "container"
        assert spec["description"] == "what it shows"
        assert "config" not in spec
        assert len(panel.title) <= 48, "a title fits a phone"
        assert LABELS & set(panel.subtitle.replace(";", " ").replace(",", " ").split()), "a subtitle names its evidence"
        drawn = json.dumps({**spec, "datasets": None, "$schema": None})
        assert '"#' not in drawn, "colours come from the theme"
        data = rows(panel)
        assert data
        assert len(json.dumps(data)) < 150_000
        numbers = [value for row in data for value in row.values() if isinstance(value, float)]
        assert all(float(f"{value:.4g}") == value for value in numbers), "four digits are enough"


def test_numbers_and_claims_of_a_part_are_the_ledger_s(chosen):
    from kvpager.claims.ledger import claims

    for part in in_order():
        assert set(part.claims) <= set(claims())
        assert len(set(part.claims)) == len(part.claims)
