"""What each placement reaches."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

SIZES = {0.054: "5.4 % of the KV in HBM", 0.10: "10 %", 0.25: "25 %"}
CLAIMS = (
    *(f"{told} at {100 * size:g} %" for size in SIZES for told in ("blend", "blend against other policies")),
    "global pool at 10 %",
    "blend, one thing changed, at 10 %",
)
NAMES = ["blend", "access-ema", "lfu", "w-tinylfu", "access-ema+split:16", "ema", "last-step", "s3-fifo", "lru", "next-mass"]


def draw(rows: Rows) -> Picture:
    """Share of Belady's hits by policy and size."""
    mine = [row for row in rows if row["model"] == "smollm2" and row["pool"] == "global"]
    found = [
        {"category": name, "series": told}
        | spread((row["belady_share"] for row in mine if (row["policy"], row["hbm_fraction"]) == (name, size)), 1)
        for name in NAMES
        for size, told in SIZES.items()
    ]
    texts = len({row["text"] for row in mine})
    chart = dots(found, "% of the hits that are possible (Belady's)", order=NAMES, series=list(SIZES.values()))
    return (
        chart,
        "What each placement reaches in one global pool",
        f"mean and 95 % interval over {texts} held-out texts, simulated; next-mass knows the next step",
    )
