"""Distance against content as a ranking of what to keep."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("rope-locality-geometric",)
POLICIES = {
    "sink-recent:sink_tokens=0": "nearest blocks",
    "sink-recent": "first block and nearest",
    "ema": "blocks that drew mass lately (EMA)",
}
SERIES = {
    ("equal", "block_hit_ratio"): "accesses that hit, equal shares",
    ("global", "block_hit_ratio"): "accesses that hit, one pool",
    ("equal", "mass_hit_ratio"): "mass held, equal shares",
    ("global", "mass_hit_ratio"): "mass held, one pool",
}


def draw(rows: Rows) -> Picture:
    """Hits and mass of each ranking in both pools."""
    mine = [row for row in rows if row["policy"] in POLICIES]
    found = [
        {"category": told, "series": name} | spread(row[key] for row in mine if (row["policy"], row["pool"]) == (policy, pool))
        for policy, told in POLICIES.items()
        for (pool, key), name in SERIES.items()
    ]
    texts = len({row["text"] for row in mine})
    return (
        dots(found, "%", order=list(POLICIES.values()), series=list(SERIES.values())),
        "Keeping what is near, and keeping what was read",
        f"mean and 95 % interval over {texts} texts, SmolLM2, 10 % of the KV in HBM, simulated",
    )
