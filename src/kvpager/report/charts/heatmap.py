"""What one head reads, block by step, and which of its blocks were resident."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, rounded
from kvpager.report.charts.style import legend_below
from kvpager.report.document import Document, percent

__all__ = ["HeatMap", "merge"]

_COLUMNS, _ROWS = 120, 64
"""Most cells of the drawing: more would be thinner than a pixel on a phone."""

_FLOOR = 1e-3
"""Least mass that is told apart."""


@CHARTS.register("heatmap")
class HeatMap(Chart):
    """Blue cells are resident, orange ones absent; the stronger the colour, the more mass."""

    title = "One head, block by step"
    order = 6
    needs = "heatmap"

    def lead(self, doc: Document) -> str:  # docstring inherited
        grid = doc["heatmap"]
        merged = (
            " Neighbouring blocks and steps are merged to fit: a cell stands for its heaviest block." if _merged(grid) else ""
        )
        return (
            f"Layer {grid['layer']}, KV head {grid['kv_head']}, under {grid['policy']} ({grid['pool']} pool, "
            f"{percent(grid['hbm_fraction'], 2)} of the KV in HBM). Blue blocks were resident when "
            "the step was judged, orange ones were not: a strong orange "
            f"cell is a miss that mattered.{merged}"
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        return [_panel(doc["heatmap"])]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        grid = doc["heatmap"]
        hit, share = _mass_resident(grid)
        return (
            f"Heat map of {len(grid['mass'])} steps by {len(grid['mass'][0])} blocks of one KV head. "
            f"On average {percent(share)} of its blocks were resident and held {percent(hit)} of its mass."
        )

    def table(self, doc: Document) -> Table:  # docstring inherited
        grid = doc["heatmap"]
        mass = [sum(column) / len(grid["mass"]) for column in zip(*grid["mass"], strict=True)]
        resident = [sum(column) / len(grid["resident"]) for column in zip(*grid["resident"], strict=True)]
        best = sorted(range(len(mass)), key=lambda block: -mass[block])[:8]
        rows = [(f"{block}", percent(mass[block]), percent(resident[block], 0)) for block in best]
        head = ("block", "mean mass", "steps resident")
        return Table("The eight blocks with most mass", head, rows, [grid.get("evidence", "simulated")] * len(rows))


def merge(grid: Mapping[str, Any], rows: int, columns: int) -> list[dict[str, Any]]:
    """Merge neighbours until at most `rows` × `columns` cells are left; a cell stands for its heaviest block.

    Returns
    -------
    list of dict
        One a row of cells: ``s`` and ``s2`` (first step, first after), ``i`` (its cells, counted from the left), ``m`` (mass, at
        least `_FLOOR`) and ``r`` (1 = resident). Cells that are absent and lighter than `_FLOOR` are left out.
    """
    mass, resident = np.asarray(grid["mass"], float), np.asarray(grid["resident"], bool)
    tops, lefts = _edges(mass.shape[0], rows), _edges(mass.shape[1], columns)
    lines = []
    for top, bottom in pairwise(tops):
        line: dict[str, Any] = {"s": top + grid["steps"][0], "s2": bottom + grid["steps"][0], "i": [], "m": [], "r": []}
        for i, (left, right) in enumerate(pairwise(lefts)):
            cell = mass[top:bottom, left:right]
            there = bool(resident[top:bottom, left:right].flat[cell.argmax()])
            if there or cell.max() >= _FLOOR:
                line["i"].append(i)
                line["m"].append(rounded(max(float(cell.max()), _FLOOR)))
                line["r"].append(int(there))
        lines.append(line)
    return lines


def _edges(count: int, most: int) -> list[int]:
    parts = min(count, most)
    return [i * count // parts for i in range(parts + 1)]


def _merged(grid: dict[str, Any]) -> bool:
    return len(grid["mass"]) > _ROWS or len(grid["mass"][0]) > _COLUMNS


def _mass_resident(grid: dict[str, Any]) -> tuple[float, float]:
    """Share of the shown mass that was resident, and share of the shown cells that were."""
    pairs = [
        (m, r) for masses, flags in zip(grid["mass"], grid["resident"], strict=True) for m, r in zip(masses, flags, strict=True)
    ]
    total = sum(m for m, _ in pairs) or 1.0
    return sum(m for m, r in pairs if r) / total, sum(1 for _, r in pairs if r) / len(pairs)


def _panel(grid: dict[str, Any]) -> Panel:
    blocks, (first, last) = len(grid["mass"][0]), grid["steps"]
    edge = f"floor((datum.i + {{}}) * {blocks} / {min(blocks, _COLUMNS)})"
    base = (
        alt.Chart(alt.InlineData(values=merge(grid, _ROWS, _COLUMNS)))
        .transform_flatten(["i", "m", "r"])
        .transform_calculate(b=edge.format(0), b2=edge.format(1))
        .encode(
            x=alt.X("b:Q", scale=alt.Scale(domain=[0, blocks], nice=False), axis=alt.Axis(title="block, old to new", grid=False)),
            x2=alt.X2("b2:Q"),
            y=alt.Y(
                "s:Q",
                scale=alt.Scale(domain=[first, last + 1], reverse=True, nice=False),
                axis=alt.Axis(title="decode step", grid=False, tickMinStep=1, format="d"),
            ),
            y2=alt.Y2("s2:Q"),
            tooltip=[
                alt.Tooltip("b:Q", title="block"),
                alt.Tooltip("s:Q", title="step"),
                alt.Tooltip("m:Q", title="mass", format=".2%"),
                alt.Tooltip("r:Q", title="resident"),
            ],
        )
    )
    layers = [_cells(base, flag, name, ramp) for flag, name, ramp in ((0, "absent", "heatmap"), (1, "resident", "ramp"))]
    drawing = alt.layer(*layers).resolve_scale(color="independent").properties(height=360)
    evidence = grid.get("evidence", "simulated")
    subtitle = f"attention mass of a block in a step, log scale; blank: absent and below {percent(_FLOOR)}; residency {evidence}"
    return Panel(
        "cells", f"Layer {grid['layer']}, KV head {grid['kv_head']}, {grid['policy']}, pool {grid['pool']}", subtitle, drawing
    )


def _cells(base: alt.Chart, flag: int, name: str, ramp: Any) -> alt.Chart:
    look = legend_below(1) | {"title": f"mass, {name}", "gradientLength": 110, "values": [_FLOOR, 0.03, 1.0], "format": "~%"}
    color = alt.Color("m:Q", scale=alt.Scale(type="log", domain=[_FLOOR, 1], range=ramp), legend=alt.Legend(**look))
    cells: alt.Chart = base.transform_filter(alt.datum.r == flag).mark_rect(stroke=None).encode(color=color)
    return cells
