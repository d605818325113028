"""Colours and the two themes. Series colours are told apart by people with any colour vision, in both themes.

Charts name no colour: they take the ranges ``category`` (series), ``ramp`` (blue: resident) and ``heatmap``
(orange: absent) from the theme's configuration. Where a series matters, it also has a shape of its own.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PERCENT", "THEMES", "axis_percent", "axis_whole", "legend_below"]

PERCENT = "~%"
"""d3 format of a ratio on an axis."""

_LIGHT = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#3aa5d9", "#5b4b8a", "#7a7a7a", "#8c510a", "#1b1b1b"]
_DARK = ["#4aa8f0", "#ff8a4c", "#2fc89b", "#e58fd0", "#f0c244", "#a5dcff", "#b3a2f0", "#a8a8a8", "#d8a06a", "#f2f2f2"]


def _theme(
    paper: str, text: str, soft: str, line: str, series: list[str], resident: list[str], absent: list[str]
) -> dict[str, Any]:
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
    axis = {"labelColor": text, "titleColor": text, "domainColor": soft, "tickColor": soft, "gridColor": line}
    return {
        "background": None,
        "padding": {"left": 2, "top": 4, "right": 12, "bottom": 4},
        "font": font,
        "view": {"stroke": None},
        "axis": {**axis, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelLimit": 220},
        "legend": {"labelColor": text, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
        "title": {"color": text, "subtitleColor": soft, "fontSize": 15, "subtitleFontSize": 12, "subtitlePadding": 6},
        "mark": {"color": series[0]},
        "text": {"color": text, "fontSize": 12},
        "rule": {"color": soft},
        "style": {"inside": {"color": paper, "fill": paper, "fontWeight": 600}},
        "range": {"category": series, "ramp": resident, "heatmap": absent},
    }


THEMES: dict[str, dict[str, Any]] = {
    "light": _theme(
        "#ffffff", "#1f2328", "#59636e", "#e3e6ea", _LIGHT,
        ["#dbe9f6", "#85bcdc", "#2f7fbc", "#08306b"], ["#fbe3cd", "#fdb06b", "#ee6310", "#7f2704"],
    ),
    "dark": _theme(
        "#0f1419", "#e6edf3", "#9aa5b1", "#2c333b", _DARK,
        ["#12304a", "#1f5f96", "#4aa8f0", "#d6eeff"], ["#3a2719", "#8a4513", "#f1781f", "#ffe3c7"],
    ),
}  # fmt: skip
"""Vega-Lite configuration of each theme."""


def axis_whole(title: str) -> dict[str, Any]:
    """Return the keywords of an axis from 0 to 100 %, with few grid lines."""
    return axis_percent(title, [0, 0.2, 0.4, 0.6, 0.8, 1])


def axis_percent(title: str, values: list[float] | None = None) -> dict[str, Any]:
    """Return the keywords of an axis of ratios printed as per cent."""
    axis: dict[str, Any] = {"format": PERCENT, "title": title}
    return axis | ({"values": values} if values else {})


def legend_below(columns: int, **more: Any) -> dict[str, Any]:
    """Return the keywords of a legend under the drawing, so that a phone's width is left to the data."""
    return {
        "orient": "bottom",
        "title": None,
        "columns": columns,
        "labelLimit": 260,
        "symbolSize": 110,
        "symbolOpacity": 1,
        **more,
    }
