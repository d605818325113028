"""Kinds of query heads."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("head-split", "head-gqa-mixing")


def draw(rows: Rows) -> Picture:
    """Kinds of query heads, beside the note's shares."""
    mine = [row for row in rows if row.get("model") == "smollm2" and row.get("anchor") is not None]
    series = ["SmolLM2", "SmolLM2, first 4 tokens set aside", "the note"]
    said = {"recency": 40.0, "anchor": 15.0, "other": 45.0}
    found = []
    for kind, value in said.items():
        found += [
            {"category": kind, "series": series[0]} | spread(row[kind] for row in mine),
            {"category": kind, "series": series[1]} | spread(row[f"{kind}_without_sink"] for row in mine),
            {"category": kind, "series": series[2], "value": value},
        ]
    return (
        dots(found, "% of the query heads", order=list(said), series=series),
        "Kinds of heads",
        f"mean and 95 % interval over {len(mine)} texts, measured; other = the note's retrieval and syntactic heads",
    )
