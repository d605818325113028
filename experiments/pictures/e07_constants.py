"""What calibrated constants gain on held-out texts."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("p-weights", "p-thresholds", "calibrated-constants")
TOLD = {
    "notes with cuts": "the notes' constants and cuts",
    "notes": "the notes' constants, by rank",
    "notes, scaled": "... with E over its largest",
    "weights": "... and fitted weights",
    "fitted": "... and fitted alpha, half-life, sink zone",
    "logistic": "weights by logistic fit instead",
    "fitted with cuts": "fitted, with fitted cuts",
    "blend": "blend (recommended)",
    "belady": "largest possible (Belady)",
}


def draw(rows: Rows) -> Picture:
    """Hits at the size for which constants were fitted, by set of constants."""
    found = [
        {"category": told, "series": "hits"}
        | spread(row["block_hit_ratio"] for row in rows if row["name"] == name and row["part"] is None)
        for name, told in TOLD.items()
    ]
    texts = len({row["text"] for row in rows if row["text"]})
    return (
        dots(found, "% of accesses that hit", order=list(TOLD.values()), series=["hits"]),
        "What constants fitted on two texts gain on seven others",
        f"mean and 95 % interval over {texts} held-out texts, SmolLM2, 6.84 % of the KV in one pool, simulated",
    )
