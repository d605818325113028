"""What another smoothing weight would gain."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, lines, spread
from experiments.texts import TEST

CLAIMS = ("ema-alpha",)
NOTES_ALPHA = 0.2


def draw(rows: Rows) -> Picture:
    """Points of hits over alpha 0.2, by alpha and size of HBM, on the texts for judging."""
    mine = [row for row in rows if row["part"] == "alpha" and row["name"] in TEST]
    of = {(row["name"], row["hbm_fraction"], row["alpha"]): row["block_hit_ratio"] for row in mine}
    sizes = sorted({size for _, size, _ in of})
    alphas = sorted({alpha for *_, alpha in of})
    told = {size: f"HBM of {100 * size:.3g} % of the KV" for size in sizes}
    found = [
        {"at": alpha, "series": told[size]} | spread(of[text, size, alpha] - of[text, size, NOTES_ALPHA] for text in TEST)
        for size in sizes
        for alpha in alphas
    ]
    chart = lines(
        found, "alpha", "points of block hits over alpha 0.2", series=list(told.values()), log="x", ticks=alphas, rule=0
    )
    return (
        chart,
        "What another smoothing weight of the EMA gains",
        f"mean and 95 % interval over {len(TEST)} held-out texts, SmolLM2, one pool, simulated",
    )
