"""One recording, one policy, one size: how the definition of an access decides the number."""

from __future__ import annotations

from typing import Any

import altair as alt

from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline, pixel
from kvpager.report.charts.style import axis_whole, legend_below
from kvpager.report.document import Document, percent

__all__ = ["Definitions"]

_BLOCKS, _MASS = "share of blocks", "share of attention mass"


@CHARTS.register("definitions")
class Definitions(Chart):
    """One bar a definition, lowest first."""

    title = "What counts as an access decides the number"
    order = 3
    needs = "access_definitions"

    def lead(self, doc: Document) -> str:  # docstring inherited
        row = doc["access_definitions"][0]
        values = [r["value"] for r in doc["access_definitions"]]
        return (
            f"The same recording, the same policy ({row['policy']}, {row['pool']} pool) and the same "
            f"{percent(row['hbm_fraction'], 2)} of the KV in HBM give anything from {percent(min(values))} to "
            f"{percent(max(values))}, by what is called an access. A hit ratio without its definition says nothing."
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        rows = [
            {
                "order": i,
                "text": f"{row['name']}: {percent(row['value'])}",
                "kind": _kind(row),
                "value": row["value"],
                "access": row["access"],
            }
            for i, row in enumerate(_ordered(doc))
        ]
        y = alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0.62, paddingOuter=0.45))
        base = alt.Chart(inline(rows)).encode(y=y)
        bars = base.mark_bar(height=14).encode(
            x=alt.X(
                "value:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("hit, by the definition above each bar"))
            ),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=[_BLOCKS, _MASS]), legend=alt.Legend(**legend_below(2), symbolType="square")
            ),
            tooltip=[alt.Tooltip("access:N"), alt.Tooltip("value:Q", format=".1%")],
        )
        text = base.mark_text(align="left", baseline="bottom", dy=-10, limit=340).encode(x=pixel(0), text=alt.Text("text:N"))
        drawing = alt.layer(bars, text).properties(height=36 * len(rows))
        row = doc["access_definitions"][0]
        evidence = row.get("evidence", "simulated")
        subtitle = (
            f"per cent; {row['policy']}, {row['pool']} pool, {percent(row['hbm_fraction'], 2)} of the KV in HBM; {evidence}"
        )
        return [Panel("bars", "One recording, several definitions of an access", subtitle, drawing)]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        return (
            "Bar chart, one bar a definition of access: "
            + "; ".join(f"{r['name']} {percent(r['value'])}" for r in _ordered(doc))
            + "."
        )

    def table(self, doc: Document) -> Table:  # docstring inherited
        rows = [(r["name"], r["access"], _kind(r), percent(r["value"])) for r in _ordered(doc)]
        evidence = [r.get("evidence", "simulated") for r in _ordered(doc)]
        return Table("What each bar counts", ("definition", "an access is", "counts", "hit"), rows, evidence)


def _ordered(doc: Document) -> list[dict[str, Any]]:
    return sorted(doc["access_definitions"], key=lambda row: float(row["value"]))


def _kind(row: dict[str, Any]) -> str:
    return _MASS if "mass_hit_ratio" in row or row.get("metric") == "mass_hit_ratio" else _BLOCKS
