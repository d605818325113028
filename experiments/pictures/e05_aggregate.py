"""What is kept, and hit, if heads decide together."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("agg-layers", "agg-any-head")
TOGETHER = {
    "each KV head for itself": (None, "own"),
    "the heads of a layer": ("layer", "max over the layer"),
    "8 heads": ("eight", None),
    "all heads": ("all", "max over all"),
}
"""Columns of the blocks that are kept and of the hits, by who decides."""


def draw(rows: Rows) -> Picture:
    """Blocks kept if any head of a group marks them, and hits at equal bytes if the group decides by its maximum."""
    kept = [row for row in rows if row["part"] == "kept"]
    replayed = [row for row in rows if row["part"] == "replayed"]
    series = ["blocks kept, % of all", "accesses that hit, %"]
    found = []
    for who, (held, hit) in TOGETHER.items():
        if held:
            found.append({"category": who, "series": series[0]} | spread(row[held] for row in kept))
        if hit:
            found.append({"category": who, "series": series[1]} | spread(row[hit] for row in replayed))
    return (
        dots(found, "%", order=list(TOGETHER), series=series, rule=6.84),
        "What is kept, and what is hit, if heads decide together",
        f"mean and 95 % interval over {len(kept)} and {len(replayed)} texts, SmolLM2 ({kept[0]['heads']} KV heads), simulated; "
        "kept: marked by any head among its hottest 6.84 %; hits: at equal bytes, by the maximum; dashed: what HBM holds",
    )
