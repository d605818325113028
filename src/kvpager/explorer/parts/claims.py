"""The ledger: what the notes claim, and what came of it."""

from __future__ import annotations

from collections import Counter

import altair as alt

from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE, SUPPORTED, VERDICTS
from kvpager.explorer.answers import ledger
from kvpager.explorer.choices import Choices
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import SHAPES
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.report.charts.base import Panel, Table, inline, pixel
from kvpager.report.charts.style import legend_below

__all__ = ["Claims"]

_OUTCOMES = [SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE]
_SHOWN = ("locality-80-10", "head-split", "hot-97-plausible", "users-17-slo", "agg-any-head", "p-weights", "ladder-values",
          "ladder-rope-4", "target-10tok", "gap-widens")  # fmt: skip
"""Claims whose figures stand above the table."""


@PARTS.register("claims")
class Claims(Part):
    """Every claim with what is stated, what was found, and how it is known."""

    number = 18
    title = "The claims ledger"
    shows = "Every claim of the two notes, by what an audit of its text says and what came out since; the table can be searched."
    known = "Re-derived from the notes' own numbers where that can be done, else by experiments; each row has its evidence label."
    claims = ("status-superseded", "label-all-modeled")

    def command(self, choices: Choices) -> str:
        return "kvpager claims"

    def screen(self, choices: Choices) -> Screen:
        rows = ledger()
        outcomes = Counter(row["outcome"] for row in rows)
        place = {row["id"]: number for number, row in enumerate(rows)}
        named = {f"{rows[place[name]]['claim'].rstrip('.')} (found)": f"{place[name]}.figure" for name in _SHOWN}
        said = ", ".join(f"{outcomes[one]} {one}" for one in _OUTCOMES if outcomes[one])
        table = Table(
            f"All {len(rows)} claims",
            ("id", "note", "claim", "stated", "outcome", "finding", "evidence"),
            [
                (row["id"], row["note"], row["claim"], _stated(row), row["outcome"], row["finding"], row["evidence"])
                for row in rows
            ],
            [row["evidence"] for row in rows],
        )
        panel = Panel("outcomes", "Claims by audit and outcome", "number of claims in the ledger; analytical", _drawing(rows))
        return Screen((panel,), figures(self.command(choices), rows, named), f"Of {len(rows)} claims: {said}.", table)


def _stated(row: dict[str, object]) -> str:
    stated = row["stated"]
    if not isinstance(stated, dict):
        return "–"
    values = stated["value"] if isinstance(stated["value"], list) else [stated["value"]]
    unit = "" if stated["unit"] == "1" else f" {stated['unit']}"
    return " / ".join(f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}" for value in values) + unit


def _drawing(rows: list[dict[str, object]]) -> alt.LayerChart | alt.FacetChart:
    """Lines of one mark a number of claims: the audit's verdict above, one line an outcome."""
    counts = Counter((row["verdict"], row["outcome"]) for row in rows)
    names, bars, at = [], [], 0
    for verdict in VERDICTS:
        names.append({"at": at, "verdict": verdict.replace("-", " ")})
        for outcome in (one for one in _OUTCOMES if counts[verdict, one]):
            at += 1
            bars.append({"at": at, "outcome": outcome, "claims": counts[verdict, outcome], "from": 0})
        at += 1
    y = alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[-0.6, at - 0.4], reverse=True, nice=False, zero=False))
    x = alt.X("claims:Q", axis=alt.Axis(title="claims", tickCount=4))
    legend = alt.Legend(**legend_below(2))
    base = alt.Chart(inline(bars)).encode(
        y=y, x=x, color=alt.Color("outcome:N", scale=alt.Scale(domain=_OUTCOMES), legend=legend)
    )
    shape = alt.Shape("outcome:N", scale=alt.Scale(domain=_OUTCOMES, range=SHAPES[: len(_OUTCOMES)]), legend=legend)
    return alt.layer(
        base.mark_rule(strokeWidth=3).encode(x2=alt.X2("from:Q")),
        base.mark_point(size=95, filled=True, opacity=1).encode(
            shape=shape, tooltip=[alt.Tooltip("outcome:N"), alt.Tooltip("claims:Q")]
        ),
        base.mark_text(align="left", dx=9).encode(text=alt.Text("claims:Q")),
        alt.Chart(inline(names)).mark_text(align="left", baseline="middle").encode(y=y, x=pixel(0), text=alt.Text("verdict:N")),
    ).properties(height=17 * at)
