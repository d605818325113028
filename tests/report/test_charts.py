"""Every registered chart: what it draws, says and tabulates."""

import json

import numpy as np
import pytest

from kvpager.evidence import Evidence
from kvpager.report.charts.base import CHARTS, rounded, wrapped
from kvpager.report.charts.heatmap import merge
from kvpager.report.charts.style import THEMES
from kvpager.report.document import percent

LABELS = {label.label for label in Evidence}


def values(spec):
    """All data rows of a spec."""
    return [row for rows in spec.get("datasets", {}).values() for row in rows] + spec.get("data", {}).get("values", [])


def numbers(value):
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def test_the_issue_s_charts_are_there():
    assert {"ladder", "curves", "locality", "heads", "heatmap", "definitions", "factors"} <= set(CHARTS)
    assert len({CHARTS[name]().order for name in CHARTS}) == len(list(CHARTS))


@pytest.mark.parametrize("name", list(CHARTS))
def test_chart_keeps_the_contract(document, name):
    chart = CHARTS[name]()
    only = {key: document[key] for key in (chart.needs, "trace")}
    panels = chart.panels(only)
    assert len({panel.name for panel in panels}) == len(panels) > 0
    for panel in panels:
        spec = panel.spec("what it shows")
        assert spec["width"] == "container"
        assert spec["description"] == "what it shows"
        assert "config" not in spec
        assert LABELS & set(panel.subtitle.replace(";", " ").replace(",", " ").split()), "a subtitle names its evidence"
        assert "#" not in json.dumps({**spec, "datasets": None, "data": None, "$schema": None}), "colours come from the theme"
        data = values(spec)
        assert data
        assert len(json.dumps(data)) < 150_000
        assert all(float(f"{x:.4g}") == x for x in numbers(data)), "four digits are enough"


@pytest.mark.parametrize("name", list(CHARTS))
def test_words_and_table_hold_the_figures(document, name):
    chart = CHARTS[name]()
    table = chart.table(document)
    assert table.rows
    assert len(table.rows) == len(table.evidence)
    assert set(table.evidence) <= LABELS
    assert all(len(row) == len(table.head) for row in table.rows)
    assert "%" in chart.alternative(document)
    assert chart.lead(document).endswith(".")


def test_ladder_shows_claim_bound_and_hit(document):
    document["ladder"]["rungs"][2]["block_hit_ratio"] = 0.3217
    chart = CHARTS["ladder"]()
    panels = chart.panels(document)
    assert [panel.name for panel in panels] == ["global", "equal"]
    rows = [row for row in values(panels[0].spec()) if "series" in row]
    by_series = {s: [r["value"] for r in rows if r["series"] == s] for s in {r["series"] for r in rows}}
    assert by_series["claim of the note"] == [0.72, 0.8, 0.87, 0.93, 0.97]
    assert by_series["block hits"] == [0.0, 0.018, 0.3217, 0.453, 0.451]
    assert by_series["bound on block hits"] == [0.55, 0.47, 0.47, 0.52, 0.53]
    assert "32.2 %" in chart.alternative(document)
    assert ("global", "6.84 %", "+ EMA α 0.2", "32.2 %") in [row[:4] for row in chart.table(document).rows]


def test_curves_have_a_panel_per_pool_and_metric(document):
    names = [panel.name for panel in CHARTS["curves"]().panels(document)]
    assert names == [f"{metric}-{pool}" for metric in ("block", "mass") for pool in ("global", "layer", "equal")]
    document["curves"] = [row for row in document["curves"] if row["pool"] == "equal"]
    assert len(CHARTS["curves"]().panels(document)) == 2


def test_factors_need_all_subsets(document):
    chart = CHARTS["factors"]()
    assert chart.present(document)
    assert chart.table(document).rows[0][2:] == ("sink pin", "−2.1", "−3.4", "+8.0")
    del document["ladder"]["subsets"]
    assert not chart.present(document)
    assert not chart.present({})


def test_definitions_are_ordered_and_span_is_said(document):
    chart = CHARTS["definitions"]()
    assert [row[3] for row in chart.table(document).rows] == ["6.8 %", "7.0 %", "28.0 %", "45.0 %", "61.0 %", "87.0 %"]
    assert "from 6.8 % to 87.0 %" in chart.lead(document)


def test_zones_add_up(document):
    rows = values(CHARTS["locality"]().panels(document)[0].spec())
    for series in {row["series"] for row in rows}:
        assert sum(row["mass"] for row in rows if row["series"] == series) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("steps", "blocks"), [(3, 5), (64, 120), (65, 121), (200, 508)])
def test_merge_takes_the_heaviest_block_of_each_cell(steps, blocks):
    rng = np.random.default_rng(steps)
    mass = rng.random((steps, blocks)) ** 12
    resident = rng.random((steps, blocks)) < 0.3
    lines = merge({"mass": mass.tolist(), "resident": resident.tolist(), "steps": [7, 6 + steps]}, 64, 120)
    rows, columns = min(steps, 64), min(blocks, 120)
    assert len(lines) == rows
    assert (lines[0]["s"], lines[-1]["s2"]) == (7, 7 + steps)
    for j, line in enumerate(lines):
        assert (line["s"], line["s2"]) == (7 + j * steps // rows, 7 + (j + 1) * steps // rows)
        seen = dict(zip(line["i"], zip(line["m"], line["r"], strict=True), strict=True))
        for i in range(columns):
            cells = [
                (mass[s, b], resident[s, b])
                for s in range(line["s"] - 7, line["s2"] - 7)
                for b in range(i * blocks // columns, (i + 1) * blocks // columns)
            ]
            heaviest, there = max(cells, key=lambda cell: cell[0])
            if there or heaviest >= 1e-3:
                assert seen[i] == (pytest.approx(max(heaviest, 1e-3), rel=1e-3), int(there))
            else:
                assert i not in seen


def test_themes_differ_and_are_readable():
    """Text against the page's paper: WCAG contrast of at least 4.5 for text, 2.2 for series."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    def contrast(a, b):
        low, high = sorted((luminance(a), luminance(b)))
        return (high + 0.05) / (low + 0.05)

    for theme, paper in (("light", "#f6f8fa"), ("dark", "#171d24")):
        config = THEMES[theme]
        assert contrast(config["axis"]["labelColor"], paper) >= 7
        assert contrast(config["title"]["subtitleColor"], paper) >= 4.5
        series = config["range"]["category"]
        assert len(set(series)) == len(series) == 10
        assert all(contrast(colour, paper) >= 2.2 for colour in series)


def test_rounded():
    assert rounded(0.123456) == 0.1235
    assert rounded(123456.0) == 123500.0
    assert rounded(0.0) == 0.0
    assert rounded("x") == "x"
    assert rounded(7) == 7


def test_wrapped():
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert " ".join(wrapped("a bb ccc dddddddddd e", 4)) == "a bb ccc dddddddddd e"


def test_percent_is_what_tables_print():
    assert percent(0.4511) == "45.1 %"
