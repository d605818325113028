"""Blocks needed for shares of the mass."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots

CLAIMS = ("hot-97-plausible", "head-retrieval-vs-97", "blocks that hold 95 % of a head's mass")


def draw(rows: Rows) -> Picture:
    """Share of a KV head's blocks that hold 88, 97 and 99 % of its mass, text by text."""
    keys = {"88 %": "blocks_for_0.88", "97 %": "blocks_for_0.97", "99 %": "blocks_for_0.99"}
    found = [
        {"category": row["text"], "series": f"{name} of the mass", "value": 100 * row[key]}
        for row in rows
        for name, key in keys.items()
    ]
    chart = dots(
        found,
        "% of a KV head's blocks that are needed",
        order=[row["text"] for row in rows],
        series=[f"{name} of the mass" for name in keys],
        rule=5.4,
    )
    return chart, "How many blocks hold the mass", "mean over KV heads and steps, measured; dashed: the note's 5.4 % of the KV"
