"""Pictures of the published results, for the docs: ``python -m experiments pictures``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from pyarrow import parquet

from experiments.study import interval
from kvpager.claims.notes import LADDER_RUNGS
from kvpager.replay.ladder import RUNGS
from kvpager.report.charts.base import inline, wrapped
from kvpager.report.charts.style import THEMES, legend_below

__all__ = ["DRAW", "OF", "draw"]

Rows = list[dict[str, Any]]
WIDTH = 720
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke"]

OF = {
    "locality-80-10": "true-locality.png",
    "head-ranges": "true-locality.png",
    "hot-97-plausible": "true-coverage.png",
    "head-retrieval-vs-97": "true-coverage.png",
    "ladder-values": "true-ladder.png",
    "ladder-rope-4": "true-ladder.png",
    "head-single-policy": "true-ladder.png",
    "head-split": "true-heads.png",
    "head-gqa-mixing": "true-heads.png",
    "blend at 10 %": "true-placement.png",
    "blend against other policies at 10 %": "true-placement.png",
}
"""Picture of each finding and result, by claim or name."""


def dots(
    rows: Iterable[dict[str, Any]], title: str, *, order: list[str], series: list[str], rule: float | None = None
) -> alt.LayerChart:
    """Draw values with their intervals: one line a category, one colour and shape a series.

    Parameters
    ----------
    rows : iterable of dict
        ``category``, ``series``, ``value``; ``low`` and ``high`` where there is an interval.
    title : str
        Of the axis, with its unit.
    order, series : list of str
        Categories from top to bottom, and series.
    rule : float, optional
        An upright line.
    """
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("category:N", sort=order, title=None, axis=alt.Axis(labelLimit=300)),
        yOffset=alt.YOffset("series:N", sort=series, scale=alt.Scale(paddingOuter=0.3)),
        color=alt.Color("series:N", sort=series, scale=alt.Scale(domain=series), legend=alt.Legend(**legend_below(3))),
    )
    x = alt.X("value:Q", title=title)
    shape = alt.Shape(
        "series:N", scale=alt.Scale(domain=series, range=SHAPES[: len(series)]), legend=alt.Legend(**legend_below(3))
    )
    layers = [
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_point(size=80, filled=True, opacity=1).encode(x=x, shape=shape),
    ]
    if rule is not None:
        layers.append(alt.Chart(inline([{"value": rule}])).mark_rule(strokeDash=[4, 4]).encode(x="value:Q"))
    height = len(order) * max(22, 11 * len(series) + 8)
    return alt.layer(*layers).properties(height=height)


def _spread(rows: Rows, key: str, scale: float = 100) -> dict[str, float]:
    found = interval(scale * row[key] for row in rows)
    return {"value": found.value} | ({"low": found.low, "high": found.high} if len(rows) > 1 else {})


def locality(rows: Rows) -> tuple[alt.LayerChart, str, str]:
    """Mass by age, beside the note's three zones."""
    texts = [row for row in rows if row["model"] == "smollm2" and row["context_tokens"] > 3000 and row["steps"] != 64]
    longest = max(row["context_tokens"] for row in texts)
    texts = [row for row in texts if row["context_tokens"] == longest]
    bins = len(texts[0]["relative"])
    stated = [2.5, 2.5, *[15 / (bins - 4)] * (bins - 4), 40, 40]
    found = [
        {"age": f"{5 * i} to {5 * i + 5} %", "order": i} | _spread([{"m": row["relative"][i]} for row in texts], "m")
        for i in range(bins)
    ]
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


def coverage(rows: Rows) -> tuple[alt.LayerChart, str, str]:
    """Blocks needed for shares of the mass."""
    keys = {"88 %": "blocks_for_0.88", "97 %": "blocks_for_0.97", "99 %": "blocks_for_0.99"}
    found = [
        {"category": row["text"], "series": f"{name} of the mass", "value": 100 * row[key]}
        for row in rows
        for name, key in keys.items()
    ]
    chart = dots(
        found,
        "% of a KV head's blocks that are needed",
        order=[row["text"] for row in rows],
        series=[f"{name} of the mass" for name in keys],
        rule=5.4,
    )
    return chart, "How many blocks hold the mass", "mean over KV heads and steps, measured; dashed: the note's 5.4 % of the KV"


def ladder(rows: Rows) -> tuple[alt.LayerChart, str, str]:
    """The five rungs, in both pools, beside bound and note."""
    stated = [100 * ratio for _, ratio in LADDER_RUNGS.values()]
    found = []
    labels = [label for _, label, _ in RUNGS]
    series = ["equal pools", "one global pool", "largest possible, global pool", "the note"]
    for (_, label, on), said in zip(RUNGS, stated, strict=True):
        for pool, name in (("equal", series[0]), ("global", series[1])):
            mine = [row for row in rows if row["pool"] == pool and row["factors"] == "+".join(on)]
            found.append({"category": label, "series": name} | _spread(mine, "block_hit_ratio"))
            if pool == "global" and all(row["bound"] is not None for row in mine):
                found.append({"category": label, "series": series[2]} | _spread(mine, "bound"))
        found.append({"category": label, "series": series[3], "value": said})
    best = [row for row in rows if row["factors"] == "blend"]
    found.append({"category": "blend (recommended)", "series": series[1]} | _spread(best, "block_hit_ratio"))
    texts = len({row["text"] for row in rows})
    chart = dots(found, "% of accesses that hit", order=[*labels, "blend (recommended)"], series=series)
    return (
        chart,
        f"The notes' ladder, replayed on {texts} texts at 6.84 % of the KV",
        "mean and 95 % interval over texts, simulated on recordings of SmolLM2; the note's values are modelled, and withdrawn",
    )


def heads(rows: Rows) -> tuple[alt.LayerChart, str, str]:
    """Kinds of query heads, beside the note's shares."""
    mine = [row for row in rows if row.get("model") == "smollm2" and row.get("anchor") is not None]
    series = ["SmolLM2", "SmolLM2, first 4 tokens set aside", "the note"]
    said = {"recency": 40.0, "anchor": 15.0, "other": 45.0}
    found = []
    for kind, value in said.items():
        found += [
            {"category": kind, "series": series[0]} | _spread(mine, kind),
            {"category": kind, "series": series[1]} | _spread(mine, f"{kind}_without_sink"),
            {"category": kind, "series": series[2], "value": value},
        ]
    return (
        dots(found, "% of the query heads", order=list(said), series=series),
        "Kinds of heads",
        f"mean and 95 % interval over {len(mine)} texts, measured; other = the note's retrieval and syntactic heads",
    )


def placement(rows: Rows) -> tuple[alt.LayerChart, str, str]:
    """Share of Belady's hits by policy and size."""
    mine = [row for row in rows if row["model"] == "smollm2" and row["pool"] == "global"]
    names = ["blend", "access-ema", "lfu", "w-tinylfu", "access-ema+split:16", "ema", "last-step", "s3-fifo", "lru", "next-mass"]
    sizes = {0.054: "5.4 % of the KV in HBM", 0.10: "10 %", 0.25: "25 %"}
    found = [
        {"category": name, "series": told}
        | _spread([row for row in mine if (row["policy"], row["hbm_fraction"]) == (name, size)], "belady_share", 1)
        for name in names
        for size, told in sizes.items()
    ]
    texts = len({row["text"] for row in mine})
    chart = dots(found, "% of the hits that are possible (Belady's)", order=names, series=list(sizes.values()))
    return (
        chart,
        "What each placement reaches in one global pool",
        f"mean and 95 % interval over {texts} held-out texts, simulated; next-mass knows the next step",
    )


DRAW: dict[str, tuple[str, Callable[[Rows], tuple[alt.LayerChart, str, str]]]] = {
    "true-locality.png": ("E1", locality),
    "true-coverage.png": ("E2", coverage),
    "true-ladder.png": ("E3", ladder),
    "true-heads.png": ("E4", heads),
    "true-placement.png": ("E15", placement),
}
"""Which experiment's rows each picture shows, and how."""


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw every picture whose experiment has results; return the files."""
    written = []
    for name, (experiment, make) in DRAW.items():
        file = results / f"{experiment}.parquet"
        if not file.is_file():
            continue
        chart, title, subtitle = make(parquet.read_table(file).to_pylist())
        spec = chart.properties(width=WIDTH - 220).to_dict()
        spec.pop("config", None)
        spec |= {
            "title": {"text": title, "subtitle": wrapped(subtitle, WIDTH // 6), "anchor": "start", "offset": 12},
            "padding": 16,
        }
        picture = vl_convert.vegalite_to_png(spec, vl_version="6.4", config=THEMES["light"] | {"background": "#ffffff"}, scale=2)
        path = folder / name
        path.write_bytes(picture)
        written.append(path)
    return written
