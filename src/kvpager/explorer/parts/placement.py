"""The placement score, as its weights and cuts move."""

from __future__ import annotations

from functools import partial
from typing import Any

import altair as alt

from kvpager.errors import BadInput
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import Mark, grouped
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.replays import SIMULATED, at_once, placed, room, row, scores_at_end, script, warmup
from kvpager.replay.constants import Constants, whole_weights
from kvpager.replay.linear import Outcome, Script
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import PERCENT, legend_below

__all__ = ["Placement"]

_SCALES = {"raw": "raw E", "rank": "ranked E"}
_FATES = ("reaches the first cut", "in HBM", "in tier 0")
_FIGURES = {
    "accesses that hit": "block_hit_ratio",
    "tier 0's share of HBM at the end": "pinned_share",
}


@PARTS.register("placement")
class Placement(Part):
    """Occupancy and hits of ``P = w_R R + w_E E + w_N N`` with its two cuts, for raw and ranked E."""

    number = 12
    title = "The placement score and its cuts"
    shows = "How many units reach the two cuts, what HBM and tier 0 hold of them, and what hits, with E raw and ranked."
    known = (
        "Simulated: the recording is replayed with these constants, with E as the notes have it, then as its rank in the head."
    )
    claims = ("p-weights", "p-thresholds", "p-range", "p-raw-max", "p-new-token", "p-dir-E", "p-dir-R", "p-dir-N",
              "p-dir-threshold", "p-calibration")  # fmt: skip
    sliders = ("w_r", "w_e", "w_n", "cut_1", "cut_2", "alpha", "half_life", "hbm")

    def command(self, choices: Choices) -> str:
        policies = ",".join(_constants(choices, scale).policy for scale in _SCALES)
        return line("replay", choices.trace or "trace.zarr", policy=policies, capacity=f"{100 * choices.hbm:g}%")

    def screen(self, choices: Choices) -> Screen:
        asked, units = script(choices), room(choices)
        each = [_constants(choices, scale) for scale in _SCALES]
        outcomes = at_once([partial(placed, asked, one, units) for one in each])
        rows = [row(asked, outcome, units) for outcome in outcomes]
        named = {
            f"{what}, {scale}": f"rows.{i}.{key}" for i, scale in enumerate(_SCALES.values()) for what, key in _FIGURES.items()
        }
        named["accesses that hit under dense attention, at most"] = "rows.0.dense_bound"
        moves = {f"units newly kept a step, {scale}": f"rows.{i}.moves_per_step" for i, scale in enumerate(_SCALES.values())}
        document, command = {"rows": rows}, self.command(choices)
        weights = " + ".join(f"{weight:g} {name}" for weight, name in zip(each[0].weights, "REN", strict=True))
        fates: dict[str, tuple[float, ...]] = {
            scale: (
                float((scores_at_end(asked, one) >= choices.cut_1).sum() / units),
                float(outcome.held[-1] / units),
                float(outcome.pinned[-1] / units),
            )
            for scale, one, outcome in zip(_SCALES.values(), each, outcomes, strict=True)
        }
        said = "; ".join(
            f"with {scale} {100 * one['block_hit_ratio']:.1f} % of the accesses hit, units worth {100 * wanted:,.0f} % of HBM "
            f"reach the first cut at the end, {100 * held:.0f} % of HBM is in use, {100 * pinned:.0f} % as tier 0"
            for (scale, (wanted, held, pinned)), one in zip(fates.items(), rows, strict=True)
        )
        return Screen(
            (_occupancy(fates, units), _hits(asked, outcomes, rows[0]["dense_bound"])),
            figures(command, document, named, labels=SIMULATED)
            + figures(command, document, moves, unit="units", labels=SIMULATED),
            f"With P = {weights} (the weights, scaled to sum to 1), cuts {choices.cut_1:g} and {choices.cut_2:g}, and "
            f"{100 * choices.hbm:g} % of the KV in HBM: {said}. Dense attention would hit {100 * rows[0]['dense_bound']:.1f} %.",
        )


def _constants(choices: Choices, scale: str) -> Constants:
    weights = (choices.w_r, choices.w_e, choices.w_n)
    if sum(weights) == 0:
        raise BadInput("the weights w_r, w_e and w_n are all 0, so P says nothing: raise one of them")
    return Constants(
        whole_weights([weight / sum(weights) for weight in weights]),
        choices.alpha,
        float(choices.half_life),
        scale=scale,
        cuts=(choices.cut_1, choices.cut_2),
    )


def _occupancy(fates: dict[str, tuple[float, ...]], units: int) -> Panel:
    marks = [
        Mark(f"{scale}: {' / '.join(f'{100 * each:,.0f}' for each in shares)} %", what, share)
        for scale, shares in fates.items()
        for what, share in zip(_FATES, shares, strict=True)
    ]
    return Panel(
        "occupancy",
        "What the cuts ask for, and HBM has room for",
        f"per cent of the {units:,} units that HBM has room for, after the last step; dashed: all of it; simulated",
        grouped(marks, "share of HBM's room (log scale)", log=lambda share: f"{100 * share:,.6g} %", rule=1),
    )


def _hits(asked: Script, outcomes: list[Outcome], dense: float) -> Panel:
    total, first = asked.accesses().sum(axis=1), warmup(asked)
    rows: list[dict[str, Any]] = [
        {"step": step, "share": float(hits / max(total[step], 1)), "series": scale}
        for scale, outcome in zip(_SCALES.values(), outcomes, strict=True)
        for step, hits in enumerate(outcome.hits.sum(axis=1))
        if step >= first
    ]
    bound = alt.Chart(inline([{"share": dense}])).mark_rule(strokeDash=[5, 4], color="gray").encode(y=alt.Y("share:Q"))
    return Panel(
        "hits",
        "What hits",
        f"share of each step's accesses after the warm-up; an access: {asked.stream.selector.describe()}; simulated; gray: dense "
        "attention, analytical",
        alt.layer(_lines(rows), bound).properties(height=230),
    )


def _lines(rows: list[dict[str, Any]]) -> alt.Chart:
    series, legend = list(dict.fromkeys(row["series"] for row in rows)), alt.Legend(**legend_below(2))
    drawing: alt.Chart = (
        alt.Chart(inline(rows))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("step:Q", axis=alt.Axis(title="step", tickCount=5), scale=alt.Scale(nice=False, zero=False)),
            y=alt.Y("share:Q", axis=alt.Axis(title="share of accesses that hit", format=PERCENT, tickCount=5)),
            color=alt.Color("series:N", scale=alt.Scale(domain=series), legend=legend),
            strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(domain=series, range=[[1, 0], [6, 3]]), legend=legend),
        )
    )
    return drawing
