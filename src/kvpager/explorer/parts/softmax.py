"""The note's worked row of attention scores, turned into shares as softmax does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from kvpager.analysis.shares import exponentials, linear_shares, softmax_shares
from kvpager.claims.check import row
from kvpager.claims.ledger import givens
from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import facts
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import axis_percent, legend_below

__all__ = ["Softmax"]

_CLAIM = "softmax-example"


@PARTS.register("softmax")
class Softmax(Part):
    """Scores, their exponentials, and the shares that follow, beside those the note prints."""

    number = 2
    title = "From scores to shares: softmax"
    shows = "The note's four scores, what softmax makes of them, and the row that the note prints instead."
    known = "Analytical: the scores are the note's illustration, the rest is arithmetic; the printed shares are not softmax's."
    claims = (_CLAIM, "softmax-linear-norm", "softmax-sum", "attention-self")

    def command(self, choices: Choices) -> str:
        return line("claims", _CLAIM)

    def screen(self, choices: Choices) -> Screen:
        claim, scores = row(_CLAIM), np.asarray(givens()["example-scores"].value, np.float64)
        width = facts(choices.model).head_dim
        series = {
            "softmax": softmax_shares(scores).tolist(),
            "as the note prints it": [share / 100 for share in claim["stated"]["value"]],
            "score ÷ sum of scores": linear_shares(scores).tolist(),
        }
        if width:
            series[f"softmax of score ÷ √{width}"] = softmax_shares(scores / np.sqrt(width)).tolist()
        powers = exponentials(scores)
        made = series["softmax"]
        steps = "; ".join(
            f"token {place + 1}: e^{score:g} = {power:.3f}, ÷ {powers.sum():.3f} = {100 * share:.1f} %"
            for place, (score, power, share) in enumerate(zip(scores, powers, made, strict=True))
        )
        printed = ", ".join(f"{share:g}" for share in claim["stated"]["value"])
        return Screen(
            (_powers(scores.tolist(), powers.tolist()), _shares(scores.tolist(), series)),
            tuple(_figures(claim, self.command(choices))),
            f"{steps}. The note prints {printed} %. "
            f"Softmax parts scores only as far as they differ: {scores.max() - scores.min():.2f} apart is a factor of "
            f"{powers.max() / powers.min():.2f}.",
        )


def _figures(claim: Mapping[str, Any], command: str) -> list[Figure]:
    return [
        Figure(
            f"{words}, token {place + 1}",
            Quantity(value, claim[key]["unit"], frozenset({Evidence.of(claim[key]["evidence"])})),
            command,
            f"0.{key}.value.{place}",
        )
        for key, words in (("derived", "share by softmax"), ("stated", "share that the note states"))
        for place, value in enumerate(claim[key]["value"])
    ]


def _powers(scores: Sequence[float], powers: Sequence[float]) -> Panel:
    rows = [{"score": f"{score:g}", "power": power, "text": f"{power:.2f}"} for score, power in zip(scores, powers, strict=True)]
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("score:N", sort=None, title="score"),
        x=alt.X(
            "power:Q", axis=alt.Axis(title="e to the score", values=[0, 1, 2]), scale=alt.Scale(domainMax=1.15 * max(powers))
        ),
    )
    drawing = alt.layer(base.mark_bar(), base.mark_text(align="left", dx=4).encode(text=alt.Text("text:N")))
    subtitle = f"sum: {sum(powers):.3f}; analytical, of illustrative scores"
    return Panel("powers", "First: e to the score", subtitle, drawing.properties(height=120))


def _shares(scores: Sequence[float], series: Mapping[str, Sequence[float]]) -> Panel:
    rows = [
        {"score": f"{score:g}", "series": name, "share": share}
        for name, shares in series.items()
        for score, share in zip(scores, shares, strict=True)
    ]
    kind: dict[str, Any] = {"scale": alt.Scale(domain=list(series)), "legend": alt.Legend(**legend_below(1))}
    drawing = (
        alt.Chart(inline(rows))
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            y=alt.Y("score:N", sort=None, axis=alt.Axis(title="score", grid=True)),
            yOffset=alt.YOffset("series:N", sort=list(series)),
            x=alt.X(
                "share:Q",
                axis=alt.Axis(**axis_percent("share of attention", [0, 0.2, 0.4, 0.6])),
                scale=alt.Scale(domain=[0, 0.6]),
            ),
            color=alt.Color("series:N", **kind),
            shape=alt.Shape("series:N", **kind),
            tooltip=[alt.Tooltip("score:N"), alt.Tooltip("series:N"), alt.Tooltip("share:Q", format=".1%")],
        )
    )
    subtitle = "per cent of attention; analytical, of illustrative scores"
    return Panel("shares", "Then: each divided by the sum", subtitle, drawing.properties(height=200))
