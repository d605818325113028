"""What each step of the ladder is worth in any order, beside what the note claims for it in one order."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt

from kvpager.claims.notes import LADDER_RUNGS, points
from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline
from kvpager.report.charts.style import legend_below
from kvpager.report.document import Document, percent

__all__ = ["Factors"]

_SHAPLEY, _LEFT_OUT, _NOTE = "mean over all orders (Shapley)", "loss if it alone is left out", "claim of the note"

_STEPS = {
    name: after - before
    for name, ((_, before), (_, after)) in zip([*LADDER_RUNGS][1:], pairwise(LADDER_RUNGS.values()), strict=True)
}
"""Factor → gain that the note claims."""


@CHARTS.register("factors")
class Factors(Chart):
    """One panel a pool."""

    title = "What each factor is worth"
    order = 7
    needs = "ladder"

    def present(self, doc: Document) -> bool:  # docstring inherited
        return bool(doc.get("ladder", {}).get("subsets"))

    def lead(self, doc: Document) -> str:  # docstring inherited
        return (
            "The note adds its four factors in one order and takes each step as the factor's worth. Here all 16 subsets "
            "were replayed: the Shapley share is the mean gain over all 24 orders, and the loss is what is missing when "
            "only that factor is left out. A negative bar is a factor that costs hits."
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        evidence = doc["ladder"]["rungs"][0]["evidence"]
        return [_panel(study, evidence) for study in doc["ladder"]["subsets"]]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        parts = [
            f"{study['pool']} pool: " + ", ".join(f"{_name(factor)} {points(gain)}" for factor, gain in study["shapley"].items())
            for study in doc["ladder"]["subsets"]
        ]
        return "Bar chart of Shapley shares, in points (1 % of the accesses), beside the note's claims. " + "; ".join(parts) + "."

    def table(self, doc: Document) -> Table:  # docstring inherited
        rows: list[tuple[str, ...]] = []
        for study in doc["ladder"]["subsets"]:
            for factor, gain in study["shapley"].items():
                figures = (points(gain), points(study["leave_one_out"][factor]), points(_STEPS[factor]))
                rows.append((study["pool"], percent(study["hbm_fraction"], 2), _name(factor), *figures))
        head = ("pool", "HBM", "factor", "Shapley, points", "left out, points", "note claims, points")
        return Table("Gain in block hits by factor", head, rows, [doc["ladder"]["rungs"][0]["evidence"]] * len(rows))


def _name(factor: str) -> str:
    return LADDER_RUNGS[factor][0].removeprefix("+ ")


def _panel(study: dict[str, Any], evidence: str) -> Panel:
    series = {_SHAPLEY: study["shapley"], _LEFT_OUT: study["leave_one_out"], _NOTE: _STEPS}
    rows = [
        {"factor": _name(f), "series": name, "points": 100 * gains[f]} for name, gains in series.items() for f in study["shapley"]
    ]
    color = alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=alt.Legend(**legend_below(1), symbolType="square"))
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("factor:N", sort=[_name(f) for f in study["shapley"]], title=None, scale=alt.Scale(paddingInner=0.25)),
        x=alt.X("points:Q", axis=alt.Axis(title="points of block hits")),
        tooltip=[alt.Tooltip("factor:N"), alt.Tooltip("series:N"), alt.Tooltip("points:Q", format="+.1f")],
    )
    bars = base.mark_bar().encode(yOffset=alt.YOffset("series:N", sort=list(series)), color=color)
    zero = alt.Chart(inline([{"points": 0}])).mark_rule().encode(x=alt.X("points:Q"))
    title = f"Pool {study['pool']}, {percent(study['hbm_fraction'], 2)} of the KV in HBM"
    subtitle = f"points of block hits (1 point = 1 % of the accesses); {evidence}, the note: analytical"
    return Panel(study["pool"], title, subtitle, alt.layer(bars, zero).properties(height=240))
