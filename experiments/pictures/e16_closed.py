"""The live cache in a closed loop, beside what dense recordings foretold."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots

CLAIMS = ("closed loop against dense recording", "closed loop, after a switch of topic", "closed loop, output")
SIZE = 0.10


def draw(rows: Rows) -> Picture:
    """Hits by text: live, foretold, largest possible."""
    mine = [row for row in rows if row["part"] == "text" and row["hbm_fraction"] == SIZE]
    live = [row for row in mine if row["policy"] == "blend"]
    best = {row["text"]: row["block_hit_ratio"] for row in mine if row["policy"] == "belady"}
    series = ["blend, live", "blend, foretold by the dense recording", "largest possible (Belady)"]
    found = [
        {"category": row["text"], "series": name, "value": 100 * value}
        for row in live
        for name, value in zip(series, (row["block_hit_ratio"], row["predicted_by_dense"], best[row["text"]]), strict=True)
    ]
    return (
        dots(found, "% of accesses that hit", order=[row["text"] for row in live], series=series),
        "Hits of the live cache, and what dense recordings foretell",
        "SmolLM2 reading 10 % of the blocks by bounds on keys, HBM of 10 % of the values, one pool, measured on text that is read",
    )
