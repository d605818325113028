"""The notes' ladder, replayed."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread
from kvpager.claims.notes import LADDER_RUNGS
from kvpager.replay.ladder import RUNGS

CLAIMS = ("ladder-values", "ladder-rope-4", "head-single-policy")


def draw(rows: Rows) -> Picture:
    """The five rungs, in both pools, beside bound and note."""
    stated = [100 * ratio for _, ratio in LADDER_RUNGS.values()]
    found = []
    labels = [label for _, label, _ in RUNGS]
    series = ["equal pools", "one global pool", "largest possible, global pool", "the note"]
    for (_, label, on), said in zip(RUNGS, stated, strict=True):
        for pool, name in (("equal", series[0]), ("global", series[1])):
            mine = [row for row in rows if row["pool"] == pool and row["factors"] == "+".join(on)]
            found.append({"category": label, "series": name} | spread(row["block_hit_ratio"] for row in mine))
            if pool == "global" and all(row["bound"] is not None for row in mine):
                found.append({"category": label, "series": series[2]} | spread(row["bound"] for row in mine))
        found.append({"category": label, "series": series[3], "value": said})
    best = [row["block_hit_ratio"] for row in rows if row["factors"] == "blend"]
    found.append({"category": "blend (recommended)", "series": series[1]} | spread(best))
    texts = len({row["text"] for row in rows})
    chart = dots(found, "% of accesses that hit", order=[*labels, "blend (recommended)"], series=series)
    return (
        chart,
        f"The notes' ladder, replayed on {texts} texts at 6.84 % of the KV",
        "mean and 95 % interval over texts, simulated on recordings of SmolLM2; the note's values are modelled, and withdrawn",
    )
