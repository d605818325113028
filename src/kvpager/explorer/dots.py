"""Quantities as dots on one logarithmic axis, each under its name and with its range: a picture that a phone has room for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt

from kvpager.evidence import Quantity
from kvpager.report.charts.base import inline, pixel
from kvpager.report.charts.style import legend_below
from kvpager.units import format_quantity

__all__ = ["Dot", "dots", "log_axis"]

_ROW_PX = 38
_MOST_TICKS = 4


class Dot(NamedTuple):
    """One row: what it is, how much, and which series it belongs to."""

    name: str
    quantity: Quantity
    kind: str


def dots(
    rows: Sequence[Dot], title: str, *, show: Callable[[float], str] | None = None, base: float = 10.0
) -> alt.LayerChart | alt.FacetChart:
    """Draw `rows` from top to bottom.

    Parameters
    ----------
    rows : sequence of Dot
        All of one unit. What is zero or endless is named, but has no place on a logarithmic axis.
    title : str
        Of the axis.
    show : callable, optional
        Prints a value; default: as its unit is printed everywhere.
    base : float
        Ticks stand at its powers.

    Returns
    -------
    altair.LayerChart or altair.FacetChart
        Range as a line, value as a dot of its series' colour and shape.
    """
    shown = show or partial(format_quantity, unit=rows[0].quantity.unit)
    drawn = [(order, row) for order, row in enumerate(rows) if 0 < row.quantity.value < math.inf]
    x, domain = log_axis([end for _, row in drawn for end in row.quantity.ends], title, shown, base)
    y = alt.Y("order:O", axis=None, scale=alt.Scale(domain=list(range(len(rows))), paddingInner=0.5, paddingOuter=0.5))
    names = [{"order": order, "name": f"{row.name}: {shown(row.quantity.value)}"} for order, row in enumerate(rows)]
    text = alt.Chart(inline(names)).mark_text(align="left", baseline="bottom", dy=-9, limit=330)
    marks = [
        {
            "order": order,
            "value": row.quantity.value,
            "kind": row.kind,
            "low": max(domain[0], row.quantity.ends[0]),
            "high": min(domain[1], row.quantity.ends[1]),
        }
        for order, row in drawn
    ]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    legend = alt.Legend(**legend_below(1)) if len(kinds) > 1 else None
    base_chart = alt.Chart(inline(marks)).encode(y=y, color=alt.Color("kind:N", scale=alt.Scale(domain=kinds), legend=legend))
    drawing = alt.layer(
        base_chart.mark_rule(strokeWidth=4, opacity=0.35).encode(x=x, x2=alt.X2("high:Q")),
        base_chart.mark_point(filled=True, size=110, opacity=1).encode(
            x=alt.X("value:Q"), shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds), legend=legend)
        ),
        text.encode(y=y, x=pixel(0), text=alt.Text("name:N")),
    )
    return drawing.properties(height=_ROW_PX * len(rows))


def log_axis(
    values: Iterable[float], title: str, show: Callable[[float], str], base: float = 10.0, *, tight: bool = False
) -> tuple[alt.X, tuple[float, float]]:
    """Return a logarithmic x axis for the field ``low`` that holds `values`, with at most four labelled ticks, and its ends.

    Values that are not positive or not finite do not stretch it. It ends at powers of `base`, a `tight` one at the values.
    """
    positive = [value for value in values if 0 < value < math.inf] or [1.0]
    first = math.floor(math.log(min(positive), base) + 1e-9)
    last = max(first + 1, math.ceil(math.log(max(positive), base) - 1e-9))
    every = math.ceil((last - first) / (_MOST_TICKS - 1))
    ticks = range(first, last + 1, every)
    labels = json.dumps([show(base**power) for power in ticks])
    place = f"round((log(datum.value) / {math.log(base)!r} - {first}) / {every})"
    axis = alt.Axis(title=title, values=[base**power for power in ticks], labelExpr=f"{labels}[{place}]", labelFlush=True)
    ends = (min(positive), max(positive)) if tight else (float(base**first), float(base**last))
    return alt.X("low:Q", scale=alt.Scale(type="log", domain=list(ends), nice=False), axis=axis), ends
