"""Hits and resident mass against capacity, for every policy and pool."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import altair as alt

from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline
from kvpager.report.charts.style import axis_percent, axis_whole, legend_below
from kvpager.report.document import Document, percent

__all__ = ["Curves"]

_POOLS = ("global", "layer", "equal")

_METRICS = {
    "block_hit_ratio": ("Block hits", "per cent of accesses"),
    "mass_hit_ratio": ("Attention mass hit", "per cent of attention mass"),
}


@CHARTS.register("curves")
class Curves(Chart):
    """One panel per pool and metric; all share colours, shapes and axes."""

    title = "Hits and attention mass against capacity"
    order = 2
    needs = "curves"

    def lead(self, doc: Document) -> str:  # docstring inherited
        return (
            "The pool says who shares the capacity: every layer and head alike (global), the heads of a layer (layer), or "
            "nobody: each head has the same share (equal). The dashed line is the dense bound: what any policy would hit if a "
            "step read every block. Click a name in a legend to bring out its line."
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        names = _names(doc)
        return [
            _panel([row for row in doc["curves"] if row["pool"] == pool], pool, metric, names)
            for metric in _METRICS
            for pool in _pools(doc)
        ]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        parts = []
        for pool in _pools(doc):
            rows = [row for row in doc["curves"] if row["pool"] == pool]
            sizes = sorted({row["hbm_fraction"] for row in rows})
            for size in sizes:
                here = [row for row in rows if row["hbm_fraction"] == size]
                best, worst = (choose(here, key=lambda row: row["block_hit_ratio"]) for choose in (max, min))
                parts.append(
                    f"{pool} pool at {percent(size, 2)}: from {_name(worst)} {percent(worst['block_hit_ratio'])} "
                    f"to {_name(best)} {percent(best['block_hit_ratio'])}"
                )
        return "Line charts of block hits and of attention mass hit against the share of the KV in HBM. " + "; ".join(parts) + "."

    def table(self, doc: Document) -> Table:  # docstring inherited
        rows, evidence = [], []
        for row in sorted(doc["curves"], key=lambda r: (_POOLS.index(r["pool"]), r["hbm_fraction"], -r["block_hit_ratio"])):
            figures = [percent(row.get(key)) for key in ("block_hit_ratio", "mass_hit_ratio", "p5_head_mass", "bound")]
            moves = f"{row['moves_per_step']:,.0f}" if "moves_per_step" in row else "–"
            rows.append((row["pool"], percent(row["hbm_fraction"], 2), _name(row), *figures, moves))
            evidence.append(row["evidence"])
        head = ("pool", "HBM", "policy", "block hits", "mass hit", "p5 head mass", "bound", "moves per step")
        return Table("Every policy, pool and size; ratios in per cent", head, rows, evidence)


def _name(row: dict[str, Any]) -> str:
    return str(row.get("label", row["policy"]))


def _pools(doc: Document) -> list[str]:
    present = {row["pool"] for row in doc["curves"]}
    return [pool for pool in _POOLS if pool in present]


def _names(doc: Document) -> list[str]:
    """Policies from the one that hits most, on average, to the one that hits least."""
    hits: dict[str, list[float]] = defaultdict(list)
    for row in doc["curves"]:
        hits[_name(row)].append(row["block_hit_ratio"])
    return sorted(hits, key=lambda name: (-sum(hits[name]) / len(hits[name]), name))


def _panel(rows: list[dict[str, Any]], pool: str, metric: str, names: list[str]) -> Panel:
    title, unit = _METRICS[metric]
    low, high = (pick(row["hbm_fraction"] for row in rows) for pick in (min, max))
    points = [{"policy": _name(row), "size": row["hbm_fraction"], "ratio": row[metric]} for row in rows]
    legend = alt.Legend(**legend_below(2), columnPadding=16)
    chosen = alt.selection_point(fields=["policy"], bind="legend", name=f"chosen_{pool}_{metric}")
    x = alt.X(
        "size:Q",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(**axis_percent("share of the KV in HBM (log scale)", sorted({row["hbm_fraction"] for row in rows}))),
    )
    y = alt.Y("ratio:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole(unit)))
    base = alt.Chart(inline(points)).encode(
        x=x,
        y=y,
        color=alt.Color("policy:N", scale=alt.Scale(domain=names), legend=legend),
        opacity=alt.condition(chosen, alt.value(1), alt.value(0.12)),
        tooltip=[alt.Tooltip("policy:N"), alt.Tooltip("size:Q", format=".2%"), alt.Tooltip("ratio:Q", format=".1%")],
    )
    marks = base.mark_point(filled=True, size=70).encode(
        shape=alt.Shape("policy:N", scale=alt.Scale(domain=names), legend=legend)
    )
    dense = (
        alt.Chart(inline({"size": s, "ratio": s} for s in (low * (high / low) ** (i / 24) for i in range(25))))
        .mark_line(strokeDash=[4, 4], strokeWidth=1.2, color="gray")
        .encode(x=x, y=y)
    )
    drawing = alt.layer(dense, base.mark_line(strokeWidth=2).add_params(chosen), marks).properties(height=260)
    evidence = rows[0]["evidence"]
    name = f"{metric.removesuffix('_hit_ratio')}-{pool}"
    return Panel(name, f"{title}, pool {pool}", f"{unit}; {evidence}; dashed: dense bound, analytical", drawing)
