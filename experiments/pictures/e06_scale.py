"""Which units reach the notes' cut, by the scale of E."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("p-raw-max", "p-new-token", "ema-decisions")
SERIES = {"sinks_in_hbm": "the sink zone", "new_in_hbm": "the block written last", "others_in_hbm": "outside the sink zone"}
SCALES = {"raw": "raw scores (the note)", "max": "over the largest", "uniform": "over the uniform share", "rank": "ranks"}


def draw(rows: Rows) -> Picture:
    """Share of the units whose P reaches 0.3, by kind of unit and scale of E."""
    found = [
        {"category": told, "series": name} | spread(row[key] for row in rows if row["scale"] == scale)
        for scale, told in SCALES.items()
        for key, name in SERIES.items()
    ]
    texts = len({row["text"] for row in rows})
    return (
        dots(found, "% of the units whose P reaches 0.3", order=list(SCALES.values()), series=list(SERIES.values()), rule=6.84),
        "Which units reach the notes' cut, by the scale of E",
        f"mean and 95 % interval over {texts} texts, SmolLM2, simulated; dashed: what HBM holds of all units",
    )
