"""Where attention mass lies by age."""

from __future__ import annotations

import altair as alt

from experiments.pictures.marks import Picture, Rows, spread
from kvpager.report.charts.base import inline

CLAIMS = ("locality-80-10", "head-ranges")


def draw(rows: Rows) -> Picture:
    """Mass by age, beside the note's three zones."""
    texts = [row for row in rows if row["model"] == "smollm2" and row["context_tokens"] > 3000 and row["steps"] != 64]
    longest = max(row["context_tokens"] for row in texts)
    texts = [row for row in texts if row["context_tokens"] == longest]
    bins = len(texts[0]["relative"])
    stated = [2.5, 2.5, *[15 / (bins - 4)] * (bins - 4), 40, 40]
    found = [{"age": f"{5 * i} to {5 * i + 5} %", "order": i} | spread(row["relative"][i] for row in texts) for i in range(bins)]
    base = alt.Chart(inline(row | {"stated": stated[row["order"]]} for row in found)).encode(
        x=alt.X("age:N", sort=[row["age"] for row in found], title="position in the context, oldest first")
    )
    bars = base.mark_bar().encode(y=alt.Y("value:Q", title="% of the attention mass"))
    note = base.mark_tick(thickness=3, color="#d55e00").encode(y="stated:Q")
    return (
        alt.layer(bars, note).properties(height=240),
        f"Where attention mass lies: {longest:,} tokens, mean of {len(texts)} texts and all heads",
        "bars measured (SmolLM2); lines: what the note states, 5 / 15 / 80 %",
    )
