"""Hits by size of HBM, beside what 16 users need."""

from __future__ import annotations

import altair as alt

from experiments.pictures.marks import Picture, Rows, lines, spread

CLAIMS = ("viable-if-97",)


def draw(rows: Rows) -> Picture:
    """Hit curves, one a read fraction; a cross where 16 users would have to be."""
    curve = [row for row in rows if row["hbm_share"] is not None]
    reads = sorted({row["read_fraction"] for row in curve})
    told = {read: f"reading {100 * read:g} % of the KV" for read in reads}
    found = [
        {"at": 100 * share, "series": told[read]}
        | spread(row["byte_hit_ratio"] for row in curve if (row["read_fraction"], row["hbm_share"]) == (read, share))
        for read in reads
        for share in sorted({row["hbm_share"] for row in curve})
    ]
    needed = [row for row in rows if row["needed_hit_ratio"] is not None]
    marks = [
        {"at": 100 * row["needed_at_share"], "value": 100 * row["needed_hit_ratio"], "series": told[row["read_fraction"]]}
        for row in needed
    ]
    chart = lines(found, "HBM, % of the KV", "% of the bytes that hit", series=list(told.values()))
    cross = alt.Chart(alt.InlineData(values=marks)).mark_point(shape="cross", size=160, filled=True, opacity=1)
    chart += cross.encode(x="at:Q", y="value:Q", color="series:N")
    texts = len({row["text"] for row in curve})
    return (
        chart,
        "Hits there are, and hits 16 users would need",
        f"lines: mean and 95 % interval over {texts} texts, SmolLM2, blend in one pool, simulated; crosses: what 16 users of "
        "Llama-3-70B at 128K need for ten tokens a second on the notes' system, whose HBM holds that much of their KV",
    )
