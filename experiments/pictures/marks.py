"""The few forms all pictures share: points with intervals by category, and lines with bands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt

from experiments.study import interval
from kvpager.report.charts.base import inline
from kvpager.report.charts.style import legend_below

__all__ = ["Picture", "Rows", "dots", "lines", "spread"]

Rows = list[dict[str, Any]]
Picture = tuple[alt.LayerChart, str, str]
"""Chart, title, subtitle."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke"]


def spread(values: Iterable[float], scale: float = 100) -> dict[str, float]:
    """Mean of values times `scale`, with its 95 % interval if there are several."""
    each = [scale * value for value in values]
    found = interval(each)
    return {"value": found.value} | ({"low": found.low, "high": found.high} if len(each) > 1 else {})


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
        color=_colour(series),
    )
    x = alt.X("value:Q", title=title)
    layers = [
        base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_point(size=80, filled=True, opacity=1).encode(x=x, shape=_shape(series)),
    ]
    if rule is not None:
        layers.append(alt.Chart(inline([{"value": rule}])).mark_rule(strokeDash=[4, 4]).encode(x="value:Q"))
    height = len(order) * max(22, 11 * len(series) + 8)
    return alt.layer(*layers).properties(height=height)


def lines(
    rows: Iterable[dict[str, Any]],
    x: str,
    y: str,
    *,
    series: list[str],
    log: str = "",
    ticks: list[float] | None = None,
    rule: float | None = None,
) -> alt.LayerChart:
    """Draw one line a series, with a band where rows have ``low`` and ``high``.

    Parameters
    ----------
    rows : iterable of dict
        ``at``, ``series``, ``value``, perhaps ``low`` and ``high``.
    x, y : str
        Titles of the axes, with units.
    series : list of str
        In the order of the legend.
    log : str
        Axes with a logarithmic scale: "x", "y", "xy".
    ticks : list of float, optional
        Of the x axis.
    rule : float, optional
        A level line.
    """
    if "y" in log:  # the lower end of an interval may be no place on it
        rows = [row | ({"low": max(row["low"], row["value"] / 10)} if "low" in row else {}) for row in rows]
    axis = alt.Axis(values=ticks) if ticks else alt.Axis()
    across = alt.X("at:Q", title=x, axis=axis, scale=alt.Scale(type="log" if "x" in log else "linear", nice=not ticks))
    scale = alt.Scale(type="log" if "y" in log else "linear")
    base = alt.Chart(inline(rows)).encode(x=across, color=_colour(series))
    layers = [
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.5)
        .encode(y=alt.Y("low:Q", title=y, scale=scale), y2="high:Q"),
        base.mark_line().encode(y=alt.Y("value:Q", title=y, scale=scale)),
        base.mark_point(size=60, filled=True, opacity=1).encode(y="value:Q", shape=_shape(series)),
    ]
    if rule is not None:
        layers.append(alt.Chart(inline([{"value": rule}])).mark_rule(strokeDash=[4, 4]).encode(y="value:Q"))
    return alt.layer(*layers).properties(height=280)


def _colour(series: list[str]) -> alt.Color:
    return alt.Color("series:N", sort=series, scale=alt.Scale(domain=series), legend=_legend(series))


def _shape(series: list[str]) -> alt.Shape:
    scale = alt.Scale(domain=series, range=SHAPES[: len(series)])
    return alt.Shape("series:N", scale=scale, legend=_legend(series))


def _legend(series: list[str]) -> alt.Legend | None:
    return alt.Legend(**legend_below(3)) if len(series) > 1 else None
