"""Which kind each attention head is, beside the note's 40 / 15 / 25 / 20 %."""

from __future__ import annotations

from typing import Any

import altair as alt

from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline, pixel
from kvpager.report.charts.style import axis_whole, legend_below
from kvpager.report.document import Document, percent

__all__ = ["Heads", "grid", "shares"]

_NOTE = {"recency": 0.40, "anchor": 0.15, "retrieval": 0.25, "syntactic": 0.20}
_KINDS = ["recency", "anchor", "other", "retrieval", "syntactic"]

_POPULATIONS = {
    ("q_heads", "kinds"): "query heads",
    ("q_heads", "without_sink"): "query heads, first 4 tokens set aside",
    ("kv_heads", "kinds"): "KV heads",
    ("kv_heads", "without_sink"): "KV heads, first 4 tokens set aside",
}


@CHARTS.register("heads")
class Heads(Chart):
    """Shares of each kind, and the kind of every head."""

    title = "Head types"
    order = 5
    needs = "head_types"

    def lead(self, doc: Document) -> str:  # docstring inherited
        heads = doc["head_types"]
        overlap = " The two zones overlap in so short a context." if heads.get("zones_overlap") else ""
        intervals = "Intervals are 95 % (Wilson), over heads, not over models or texts."
        return f"Rule: {heads['rule']}. Limit: {heads['limit']}.{overlap} {intervals}"

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        heads = doc["head_types"]
        return [shares(heads), grid(heads, "by_layer", "Kind of every query head")] + (
            [grid(heads, "by_layer_without_sink", "The same, first 4 tokens set aside")]
            if "by_layer_without_sink" in heads
            else []
        )

    def alternative(self, doc: Document) -> str:  # docstring inherited
        heads = doc["head_types"]
        parts = [f"{name}: {_words(heads[who][how])}" for (who, how), name in _POPULATIONS.items()]
        return (
            f"Stacked bars of head types. The note: {', '.join(f'{k} {percent(v, 0)}' for k, v in _NOTE.items())}. "
            + "; ".join(parts)
            + "."
        )

    def table(self, doc: Document) -> Table:  # docstring inherited
        heads = doc["head_types"]
        rows: list[tuple[str, ...]] = []
        evidence = []
        for (who, how), name in _POPULATIONS.items():
            for kind, row in heads[who][how].items():
                note = percent(_NOTE[kind], 0) if kind in _NOTE else "25 % + 20 %"
                rows.append(
                    (
                        name,
                        kind,
                        f"{row['count']:,}",
                        percent(row["share"]),
                        f"{percent(row['low'], 0)} – {percent(row['high'], 0)}",
                        note,
                    )
                )
                evidence.append(heads["evidence"])
        return Table(
            "Heads of each kind", ("population", "kind", "heads", "share", "95 % interval", "note claims"), rows, evidence
        )


def _words(kinds: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{kind} {percent(kinds[kind]['share'], 0)}" for kind in ("recency", "anchor", "other"))


def shares(heads: dict[str, Any]) -> Panel:
    """Return shares of head types, by population, beside the note's."""
    bars = [("the note (population not said)", _NOTE)]
    for (who, how), name in _POPULATIONS.items():
        bars.append((f"{heads[who]['count']:,} {name}", {kind: row["share"] for kind, row in heads[who][how].items()}))
    rows: list[dict[str, Any]] = []
    for order, (_, parts) in enumerate(bars):
        start = 0.0
        for kind in (k for k in _KINDS if k in parts):
            rows.append({"order": order, "kind": kind, "from": start, "to": start + parts[kind], "share": parts[kind]})
            start += parts[kind]
    y = alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0.55, paddingOuter=0.45))
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("share of heads")))
    legend = alt.Legend(**legend_below(3), symbolType="square")
    base = alt.Chart(inline(rows)).encode(y=y, tooltip=[alt.Tooltip("kind:N"), alt.Tooltip("share:Q", format=".1%")])
    color = alt.Color("kind:N", scale=alt.Scale(domain=_KINDS), legend=legend)
    inside = base.transform_filter("datum.share >= 0.1").transform_calculate(middle="(datum.from + datum.to) / 2")
    names = alt.Chart(inline({"order": order, "name": name} for order, (name, _) in enumerate(bars)))
    drawing = alt.layer(
        base.mark_bar(height=18).encode(x=x, x2=alt.X2("to:Q"), color=color),
        inside.mark_text(style="inside", fontSize=11).encode(x=alt.X("middle:Q"), text=alt.Text("share:Q", format=".0%")),
        names.mark_text(align="left", baseline="bottom", dy=-12).encode(y=y, x=pixel(0), text=alt.Text("name:N")),
    )
    subtitle = f"per cent of heads; found: {heads['evidence']}, the note: assumption"
    return Panel("shares", "Shares of head types", subtitle, drawing.properties(height=42 * len(bars)))


def grid(heads: dict[str, Any], key: str, title: str) -> Panel:
    """Return the kind of every query head by layer; `key` is ``by_layer`` or ``by_layer_without_sink``."""
    rows = [
        {"layer": layer, "head": head, "kind": kind}
        for layer, kinds in zip(heads["layers"], heads[key], strict=True)
        for head, kind in enumerate(kinds)
    ]
    drawing = (
        alt.Chart(inline(rows))
        .mark_rect()
        .encode(
            x=alt.X("layer:O", axis=alt.Axis(title="layer", labelAngle=0, labelOverlap=True), scale=alt.Scale(paddingInner=0.08)),
            y=alt.Y("head:O", axis=alt.Axis(title="query head", labelOverlap=True), scale=alt.Scale(paddingInner=0.08)),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=_KINDS),
                legend=alt.Legend(**legend_below(3), symbolType="square", values=_KINDS[:3]),
            ),
            tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("head:O"), alt.Tooltip("kind:N")],
        )
        .properties(height=max(120, 16 * len(heads[key][0])) if len(heads[key][0]) <= 20 else 320)
    )
    name = "grid" if key == "by_layer" else "grid-without-sink"
    return Panel(name, title, f"one cell a query head; {heads['evidence']}", drawing)
