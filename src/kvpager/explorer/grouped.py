"""Values of several series under one name each: where `kvpager.explorer.dots` has one line a name, this has one a series."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import altair as alt

from kvpager.explorer.dots import log_axis
from kvpager.report.charts.base import inline, pixel
from kvpager.report.charts.style import PERCENT, legend_below

__all__ = ["SHAPES", "Mark", "grouped"]

SHAPES = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "stroke"]
"""Shape of each series, in the order of the legend."""

_LINE_PX = 18


class Mark(NamedTuple):
    """A value under a name, of a series, with the ends of its range where it has one."""

    name: str
    series: str
    value: float
    ends: tuple[float, float] | None = None


def grouped(
    marks: Sequence[Mark], title: str, *, log: Callable[[float], str] | None = None, rule: float | None = None
) -> alt.LayerChart | alt.FacetChart:
    """Draw marks from top to bottom: a name, then a line for each of its series, with all values that it has.

    Parameters
    ----------
    marks : sequence of Mark
        In the order of names and of series. An endless range is drawn to the edge, an endless value left out.
    title : str
        Of the axis.
    log : callable, optional
        Makes the axis logarithmic, and prints its ticks; without it, values are shares on a linear axis.
    rule : float, optional
        An upright dashed line.
    """
    ends = [end for mark in marks for end in (mark.value, *(mark.ends or ()))] + ([] if rule is None else [rule])
    if log is None:
        low, high = min(0.0, *ends), 1.05 * max(ends) or 1.0
        axis = alt.Axis(title=title, format=PERCENT, tickCount=4)
        x = alt.X("low:Q", axis=axis, scale=alt.Scale(domain=[low, high], nice=False))
    else:
        x, (low, high) = log_axis(ends, title, log)
    series, names, rows, at = list(dict.fromkeys(mark.series for mark in marks)), [], [], 0
    for name in dict.fromkeys(mark.name for mark in marks):
        names.append({"at": at, "name": name})
        for one in series:
            here = [mark for mark in marks if (mark.name, mark.series) == (name, one)]
            at += bool(here)
            rows += [_row(mark, at, low, high) for mark in here]
        at += 1
    y = alt.Y("at:Q", axis=None, scale=alt.Scale(domain=[-0.6, at - 0.4], reverse=True, nice=False, zero=False))
    legend = alt.Legend(**legend_below(1)) if len(series) > 1 else None
    base = alt.Chart(inline(rows)).encode(y=y, color=alt.Color("series:N", scale=alt.Scale(domain=series), legend=legend))
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series, range=SHAPES[: len(series)]), legend=legend)
    layers = [
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=4, opacity=0.35).encode(x=x, x2=alt.X2("high:Q")),
        base.transform_filter("isValid(datum.value)")
        .mark_point(size=90, filled=True, opacity=1)
        .encode(x=alt.X("value:Q"), shape=shape),
    ]
    if rule is not None:
        layers.append(alt.Chart(inline([{"rule": rule}])).mark_rule(strokeDash=[5, 4], color="gray").encode(x=alt.X("rule:Q")))
    text = alt.Chart(inline(names)).mark_text(align="left", baseline="middle").encode(y=y, x=pixel(0), text=alt.Text("name:N"))
    return alt.layer(*layers, text).properties(height=_LINE_PX * at)


def _row(mark: Mark, at: int, low: float, high: float) -> dict[str, float | str]:
    """A mark within the axis; what lies beyond it is at its end."""
    row: dict[str, float | str] = {"at": at, "series": mark.series}
    if low <= mark.value <= high:
        row["value"] = float(mark.value)
    if mark.ends is not None and not math.isnan(mark.value):
        row["low"], row["high"] = (min(max(float(end), low), high) for end in mark.ends)
    return row
