"""What prefetch gains, by prefetcher and volume."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("prefetch of 1 % of the pool a step", "prefetch by volume", "step time that prefetch saves")
SIZE = 0.10


def draw(rows: Rows) -> Picture:
    """Points of hits over no prefetch, by prefetcher, at each volume."""
    mine = [row for row in rows if row["prefetcher"] and row["hbm_fraction"] == SIZE]
    bare = {row["text"]: row["block_hit_ratio"] for row in mine if row["prefetcher"] == "none"}
    volumes = sorted({row["volume"] for row in mine if row["prefetcher"] != "none"})
    told = {volume: f"{100 * volume:g} % of the pool a step" for volume in volumes}
    gains: dict[tuple[str, float], list[float]] = {}
    for row in mine:
        if row["prefetcher"] != "none":
            gains.setdefault((row["prefetcher"], row["volume"]), []).append(row["block_hit_ratio"] - bare[row["text"]])
    found = [{"category": name, "series": told[volume]} | spread(each) for (name, volume), each in gains.items()]
    order = sorted(
        {name for name, _ in gains}, key=lambda name: -max(sum(each) for (one, _), each in gains.items() if one == name)
    )
    return (
        dots(found, "points of block hits over no prefetch", order=order, series=list(told.values()), rule=0),
        "What prefetch adds to the recommended placement",
        f"mean and 95 % interval over {len(bare)} texts, SmolLM2, {100 * SIZE:g} % of the KV in HBM, one pool, simulated; only "
        "two were tried with more volume",
    )
