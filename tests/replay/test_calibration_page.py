"""The figures of docs/calibration.md are those that the experiment published."""

import re
from pathlib import Path

from pyarrow import parquet

ROOT = Path(__file__).resolve().parents[2]
ROWS = {
    "the notes', with their cuts": "notes with cuts",
    "the notes', HBM filled by rank": "notes",
    "E divided by the head's largest": "notes, scaled",
    "and weights 0.05 / 0.95 / 0.00": "weights",
    "and alpha 0.1": "fitted",
    "the same with fitted cuts, 0.060 / 0.158": "fitted with cuts",
    "the blend (recommended)": "blend",
    "Belady (the bound)": "belady",
}


def test_the_table_is_what_was_published():
    rows = parquet.read_table(ROOT / "experiments" / "results" / "E7.parquet").to_pylist()
    judged = [row for row in rows if row["text"] is not None and row["name"] in ROWS.values()]
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) % \|", page, re.MULTILINE))
    assert set(told) == set(ROWS)
    for what, name in ROWS.items():
        ratios = [row["block_hit_ratio"] for row in judged if row["name"] == name]
        assert len(ratios) == 7
        assert told[what] == f"{100 * sum(ratios) / 7:.1f}", what
    (weights,) = {row["policy"] for row in judged if row["name"] == "weights"}
    (fitted,) = {row["policy"] for row in judged if row["name"] == "fitted with cuts"}
    assert "weights=[0.05,0.95,0.0]" in weights
    assert "scale=max" in weights
    assert "alpha=0.1," in fitted
    assert "cuts=[0.0602,0.1582]" in fitted
