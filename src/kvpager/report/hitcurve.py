"""The picture of hits against the size of a cache, and its figures as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput
from kvpager.report.document import Document, percent
from kvpager.report.file import write_file
from kvpager.report.frame import VEGA_LITE
from kvpager.report.plain import table, wrapped
from kvpager.report.requests import about
from kvpager.units import format_bytes

__all__ = ["SUFFIXES", "draw_curve", "print_curve"]

SUFFIXES = (".html", ".png", ".svg")

_RATIOS = {"prefix_token_hit_ratio": "prompt tokens hit", "block_hit_ratio": "blocks hit"}


def draw_curve(document: Document, path: Path, *, width: int = 720) -> Path:
    """Draw LRU's curve, other policies, the optimum, the ceiling and the tiers' sizes.

    Parameters
    ----------
    document : Document
        As ``kvpager curve --json`` prints it.
    path : Path
        File to write: ``.html`` (which needs no network), ``.png`` or ``.svg``.
    width : int
        Of the drawing, in CSS pixels.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    BadInput
        For another ending, or a file that cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise BadInput(f"picture {str(path)!r} ends in none of {', '.join(SUFFIXES)}: name one of these")
    import vl_convert

    from kvpager.report.charts.style import THEMES

    config = THEMES["light"] | {"background": "#ffffff"}
    spec = _spec(document, width)
    if path.suffix == ".html":
        content = vl_convert.vegalite_to_html(spec, vl_version=VEGA_LITE, config=config, bundle=True).encode()
    elif path.suffix == ".png":
        content = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, config=config, scale=2)
    else:
        content = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=config).encode()
    write_file(path, content)
    return path


def print_curve(document: Document) -> list[str]:
    """Return the lines that tell a curve: the sizes that reach shares of the ceiling, and the policies at the asked sizes."""
    curve, ratio = document["lru"], document["lru"]["ratio"]
    top = document["ceiling"][ratio]
    lines = [about(document["trace"]), "", *wrapped(f"By {document['semantics']}: {document['meaning']}.")]
    lines += ["", f"An infinite cache: {percent(top)} of {_RATIOS[ratio].removesuffix(' hit')}."]
    lines += table(
        f"The least LRU cache for a share of that ({curve['method']})",
        ("share", "capacity", _RATIOS[ratio]),
        ">>>",
        [(percent(entry["share_of_ceiling"], 0), _size(entry), percent(entry[ratio])) for entry in curve["reach"]],
    )
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    if rows:
        lines += table(
            "Policies at the asked sizes",
            ("policy", "capacity", _RATIOS[ratio], "below the\noptimum"),
            "<>>>",
            [(row["policy"], _size(row), percent(row[ratio]), percent(row["headroom"][ratio])) for row in rows],
        )
    return [*lines, "", f"evidence: {document['evidence']}"]


def _size(entry: Mapping[str, Any]) -> str:
    blocks = f"{entry['capacity_blocks']:,} blocks"
    return f"{blocks}, {format_bytes(entry['capacity_bytes'])}" if "capacity_bytes" in entry else blocks


def _spec(document: Document, width: int) -> dict[str, Any]:
    """The picture in Vega-Lite."""
    import altair as alt

    from kvpager.report.charts.base import inline, wrapped
    from kvpager.report.charts.style import axis_whole, legend_below

    curve, ratio = document["lru"], document["lru"]["ratio"]
    unit = "capacity_bytes" if "block_bytes" in document else "capacity_blocks"
    points = [{"policy": "lru", "size": entry[unit], "ratio": entry[ratio]} for entry in curve["points"] if entry[unit] > 0]
    others = [
        {"policy": row["policy"].removeprefix("prefix-"), "size": row[unit], "ratio": row[ratio]}
        for row in document["rows"]
        if row[unit] > 0 and row["policy"].removeprefix("prefix-") != "lru"
    ]
    names = list(dict.fromkeys(["lru", *(row["policy"] for row in others)]))
    x = alt.X(
        "size:Q",
        scale=alt.Scale(type="log", domain=[points[0]["size"], points[-1]["size"]], nice=False),
        axis=alt.Axis(
            format="~s", title="KV bytes (log scale)" if unit == "capacity_bytes" else "blocks (log scale)", tickCount=8
        ),
    )
    y = alt.Y("ratio:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole(f"{_RATIOS[ratio]}, per cent")))
    colour = alt.Color("policy:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(4)))
    shape = alt.Shape("policy:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(4)))
    tip = [alt.Tooltip("policy:N"), alt.Tooltip("size:Q", format=".3s"), alt.Tooltip("ratio:Q", format=".1%")]
    lines = alt.Chart(inline(points)).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, tooltip=tip)
    dots = (
        alt.Chart(inline(others))
        .mark_point(filled=True, size=70, opacity=1)
        .encode(x=x, y=y, color=colour, shape=shape, tooltip=tip)
    )
    top = document["ceiling"][ratio]
    ceiling = [{"size": points[0]["size"], "ratio": top, "text": f"infinite cache: {percent(top)}"}]
    layers = [
        alt.Chart(inline(ceiling)).mark_rule(strokeDash=[4, 4], color="gray").encode(y=y),
        alt.Chart(inline(ceiling)).mark_text(align="left", baseline="top", dx=4, dy=4).encode(x=x, y=y, text=alt.Text("text:N")),
        lines,
        dots,
    ]
    marks = [{"size": mark[unit], "text": mark["name"]} for mark in document.get("tiers", [])]
    marks = [mark for mark in marks if points[0]["size"] <= mark["size"] <= points[-1]["size"]]
    if marks:
        base = alt.Chart(inline(marks)).encode(x=x)
        layers += [
            base.mark_rule(strokeDash=[2, 3], color="gray"),
            base.mark_text(baseline="bottom").encode(y=alt.value(-4), text=alt.Text("text:N")),
        ]
    title = {
        "text": f"What a cache of that size would have hit: {document['trace']['path']}",
        "subtitle": wrapped(f"{document['semantics']} semantics; {document['evidence']}; {curve['method']}", width // 6),
        "anchor": "start",
        "offset": 12,
    }
    spec: dict[str, Any] = alt.layer(*layers).properties(width=width, height=320).to_dict()
    spec.pop("config", None)
    return spec | {"title": title, "padding": 16}
