"""Where the attention mass lies: by age, by distance, by layer, and in how few blocks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import altair as alt

from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline
from kvpager.report.charts.style import axis_percent, axis_whole, legend_below
from kvpager.report.document import Document, percent

__all__ = ["Locality", "coverage", "zones"]

_FOUND, _BARE, _NOTE = "this model and text", "the same, first 4 tokens set aside", "claim of the note"
_NOTE_ZONES = {"oldest 10 %": 0.05, "middle 80 %": 0.15, "newest 10 %": 0.80}

_FIGURES = {
    "newest_10_percent": "newest 10 % of the tokens",
    "newest_10_percent_without_first_4": "the same, first 4 tokens set aside (mass-weighted)",
    "first_1": "first token",
    "first_4": "first 4 tokens",
    "first_100": "first 100 tokens",
    "last_200": "last 200 tokens",
    "q_heads_newest_10_at_least_80": "query heads with ≥ 80 % on the newest 10 %",
}


@CHARTS.register("locality")
class Locality(Chart):
    """Five panels from coarse to fine."""

    title = "Where the attention goes"
    order = 4
    needs = "locality"

    def lead(self, doc: Document) -> str:  # docstring inherited
        profile = doc["locality"]
        need = profile["blocks_needed"]["0.95"]
        used = percent(need["mean_share"])
        return (
            f"The newest 10 % of the tokens get {percent(profile['newest_10_percent'])} of the attention mass, the first "
            f"4 tokens {percent(profile['first_4'])}. A KV head needs {used} of its blocks for 95 % of its "
            f"mass; all heads together touch {percent(need['all_union_share'])} of the positions, which is why blocks are kept "
            "per layer and head. Means over heads and decode steps."
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        profile = doc["locality"]
        return [zones(profile), _relative(profile), _distance(profile), coverage(profile), _layers(profile)]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        profile = doc["locality"]
        ages = "; ".join(f"{name}: {percent(profile[key])}" for key, name in _FIGURES.items() if key in profile)
        curve = ", ".join(
            f"{percent(s)} of the blocks hold {percent(m)}"
            for s, m in zip(profile["coverage"]["share"], profile["coverage"]["mean"], strict=True)
            if s in (0.01, 0.054, 0.1, 0.25)
        )
        return f"Bars and lines of attention mass by age, distance, best blocks and layer. {ages}. Best blocks: {curve}."

    def table(self, doc: Document) -> Table:  # docstring inherited
        profile = doc["locality"]
        rows = [(name, percent(profile[key])) for key, name in _FIGURES.items() if key in profile]
        for target, need in profile["blocks_needed"].items():
            rows += [
                (
                    f"blocks for {percent(float(target), 0)} of a KV head's mass: mean",
                    f"{need['mean']:.1f} = {percent(need['mean_share'])}",
                ),
                (f"… {percent(float(target), 0)}: median, 90th percentile", f"{need['median']:.0f}, {need['p90']:.0f}"),
                (f"… {percent(float(target), 0)}: union of a layer's KV heads", percent(need["layer_union_share"])),
                (f"… {percent(float(target), 0)}: union of all layers and heads", percent(need["all_union_share"])),
            ]
        return Table("Mass on token ranges; blocks needed", ("figure", "value"), rows, [profile["evidence"]] * len(rows))


def zones(profile: dict[str, Any]) -> Panel:
    """Return the mass of the oldest, middle and newest tokens, beside the note's; `profile` as `analysis.locality` gives it."""
    bins, sink = profile["relative"]["mean"], profile["first_4"]
    tenth = len(bins) // 10
    mass = {"oldest 10 %": sum(bins[:tenth]), "middle 80 %": sum(bins[tenth:-tenth]), "newest 10 %": sum(bins[-tenth:])}
    bare = {zone: (value - (sink if zone == "oldest 10 %" else 0)) / (1 - sink) for zone, value in mass.items()}
    series = {_FOUND: mass, _BARE: bare, _NOTE: _NOTE_ZONES}
    rows = [
        {"zone": zone, "series": name, "mass": value, "text": percent(value)}
        for name, zones in series.items()
        for zone, value in zones.items()
    ]
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("zone:N", sort=list(_NOTE_ZONES), title=None, scale=alt.Scale(paddingInner=0.25)),
        yOffset=alt.YOffset("series:N", sort=list(series)),
        x=alt.X("mass:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("share of attention mass"))),
    )
    color = alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=alt.Legend(**legend_below(1), symbolType="square"))
    drawing = alt.layer(
        base.mark_bar().encode(color=color), base.mark_text(align="left", dx=5, fontSize=11).encode(text=alt.Text("text:N"))
    )
    subtitle = f"per cent of attention mass; found: {profile['evidence']}, claim: external-literature, by way of the note"
    return Panel("zones", "Oldest, middle, newest", subtitle, drawing.properties(height=200))


def _relative(profile: dict[str, Any]) -> Panel:
    edges, bins = profile["relative"]["edges"], profile["relative"]["mean"]
    rows = [{"from": low, "to": high, "mass": mass} for (low, high), mass in zip(pairwise(edges), bins, strict=True)]
    drawing = (
        alt.Chart(inline(rows))
        .mark_bar(binSpacing=1)
        .encode(
            x=alt.X(
                "from:Q",
                bin="binned",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(**axis_whole("position in the context, old to new")),
            ),
            x2=alt.X2("to:Q"),
            y=alt.Y("mass:Q", axis=alt.Axis(**axis_percent("share of attention mass"))),
            tooltip=[alt.Tooltip("from:Q", format=".0%"), alt.Tooltip("to:Q", format=".0%"), alt.Tooltip("mass:Q", format=".2%")],
        )
        .properties(height=200)
    )
    return Panel(
        "relative",
        "By relative position",
        f"per cent of attention mass in each 5 % of the tokens; {profile['evidence']}",
        drawing,
    )


def _distance(profile: dict[str, Any]) -> Panel:
    tokens = int(profile["context_tokens"])
    spans = [(low, min(high, tokens)) for low, high in pairwise([*profile["absolute"]["edges"], tokens]) if low < tokens]
    prior = sum(1 / (1 + distance / 100) for distance in range(tokens))
    mean, note = "mean of all heads", "the note's prior 1/(1 + d/100)"
    curves = [(str(n), bins) for n, bins in zip(profile["layers"], profile["absolute"]["by_layer"], strict=True)]
    rows: list[dict[str, Any]] = []
    for (low, high), *masses in zip(spans, profile["absolute"]["mean"], *(bins for _, bins in curves), strict=False):
        at = math.sqrt((low + 1) * high)
        rows.append({"series": note, "line": note, "at": at, "mass": 1 / (1 + (at - 1) / 100) / prior})
        for line, mass in zip([mean, *(n for n, _ in curves)], masses, strict=True):
            if mass > 0:
                rows.append({"series": mean, "line": line, "at": at, "mass": mass / (high - low)})
    legend = alt.Legend(**legend_below(1), symbolType="stroke", symbolStrokeWidth=3, values=[mean, note])
    x_axis = alt.Axis(title="distance in tokens + 1 (log scale)", format="~s", values=[10.0**power for power in range(7)])
    y_axis = alt.Axis(title="mass of one token (log scale)", format="~e", values=[10.0**-power for power in range(9)])
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("at:Q", scale=alt.Scale(type="log", nice=False), axis=x_axis),
        y=alt.Y("mass:Q", scale=alt.Scale(type="log"), axis=y_axis),
        color=alt.Color("series:N", scale=alt.Scale(domain=[mean, "", note]), legend=legend),
        tooltip=[
            alt.Tooltip("line:N"),
            alt.Tooltip("at:Q", title="distance + 1", format=".0f"),
            alt.Tooltip("mass:Q", format=".2g"),
        ],
    )
    is_layer = alt.FieldOneOfPredicate(field="line", oneOf=[name for name, _ in curves])
    drawing = alt.layer(
        base.transform_filter(is_layer).mark_line(opacity=0.2, strokeWidth=1).encode(detail=alt.Detail("line:N")),
        base.transform_filter(alt.datum.series == note).mark_line(strokeWidth=2, strokeDash=[6, 4]),
        base.transform_filter(alt.datum.line == mean).mark_line(strokeWidth=3, point=True),
    )
    subtitle = f"mass of one token at a distance; thin: one layer; {profile['evidence']}; prior: assumption, made to sum to 1"
    return Panel("distance", "By distance", subtitle, drawing.properties(height=240))


def coverage(profile: dict[str, Any]) -> Panel:
    """Return the mass of each KV head's best blocks by their share; `profile` as `analysis.locality` gives it."""
    curve = profile["coverage"]
    series = {"mean KV head": curve["mean"], "5th-percentile KV head": curve["p5_head"]}
    rows = [
        {"series": n, "share": s, "mass": m} for n, values in series.items() for s, m in zip(curve["share"], values, strict=True)
    ]
    drawing = (
        alt.Chart(inline(rows))
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X(
                "share:Q",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(
                    **axis_percent("best blocks, as a share of all (log scale)", [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0])
                ),
            ),
            y=alt.Y("mass:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("share of attention mass"))),
            color=alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=alt.Legend(**legend_below(1))),
            tooltip=[alt.Tooltip("series:N"), alt.Tooltip("share:Q", format=".1%"), alt.Tooltip("mass:Q", format=".1%")],
        )
        .properties(height=220)
    )
    subtitle = f"mass of each KV head's own best blocks, chosen anew at every step; {profile['evidence']}"
    return Panel("coverage", "How few blocks hold the mass", subtitle, drawing)


def _layers(profile: dict[str, Any]) -> Panel:
    series = {"newest_10_percent": "newest 10 %", "last_200": "last 200 tokens", "first_4": "first 4 tokens"}
    rows = [
        {"layer": row["layer"], "series": name, "mass": row[key]} for row in profile["by_layer"] for key, name in series.items()
    ]
    drawing = (
        alt.Chart(inline(rows))
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X("layer:Q", axis=alt.Axis(title="layer", tickMinStep=1, format="d")),
            y=alt.Y("mass:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("share of attention mass"))),
            color=alt.Color("series:N", scale=alt.Scale(domain=list(series.values())), legend=alt.Legend(**legend_below(2))),
            tooltip=[alt.Tooltip("layer:Q"), alt.Tooltip("series:N"), alt.Tooltip("mass:Q", format=".1%")],
        )
        .properties(height=220)
    )
    return Panel("layers", "By layer", f"per cent of attention mass, mean over the layer's heads; {profile['evidence']}", drawing)
