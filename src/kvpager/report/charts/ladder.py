"""The notes' five rungs: what each hits, beside what was claimed and beside what any policy could hit."""

from __future__ import annotations

from typing import Any

import altair as alt

from kvpager.claims.notes import LADDER_RUNGS
from kvpager.report.charts.base import CHARTS, Chart, Panel, Table, inline, pixel
from kvpager.report.charts.style import axis_whole, legend_below
from kvpager.report.document import Document, ladders, percent

__all__ = ["Ladder", "panel"]

_HIT, _MASS, _BOUND, _CLAIM = "block hits", "attention mass hit", "bound on block hits", "claim of the note"
_SERIES = [_HIT, _BOUND, _CLAIM, _MASS]
_SHAPES = ["square", "M-0.15,-1L0.15,-1L0.15,1L-0.15,1Z", "diamond", "circle"]
"""The bound's is a short upright bar, as in the drawing."""


@CHARTS.register("ladder")
class Ladder(Chart):
    """One panel a pool at the document's main size."""

    title = "The ladder: five rungs against the note's 72 / 80 / 87 / 93 / 97 %"
    order = 1
    needs = "ladder"

    def lead(self, doc: Document) -> str:  # docstring inherited
        row = doc["ladder"]["rungs"][0]
        return (
            "Each bar is one rung of the note's ladder, replayed on this recording. The short line is the most that any policy "
            "could hit on that rung, the diamond what the note claims, the circle the attention mass that was resident. "
            f"An access is a {row.get('access', 'unit that the selector asks for')}; selector "
            f"{row.get('selector', 'not stated')}, {row.get('clock', 'unknown')} clock. "
            "The claims are modelled (analytical), and their author has withdrawn them."
        )

    def panels(self, doc: Document) -> list[Panel]:  # docstring inherited
        return [panel(ladder) for ladder in _main_size(doc)]

    def alternative(self, doc: Document) -> str:  # docstring inherited
        parts = []
        for ladder in _main_size(doc):
            rungs = "; ".join(_in_words(rung) for rung in ladder["rungs"])
            parts.append(f"Pool {ladder['pool']}, {percent(ladder['hbm_fraction'], 2)} of the KV in HBM. {rungs}.")
        return "Bar chart of the ladder's five rungs. " + " ".join(parts)

    def table(self, doc: Document) -> Table:  # docstring inherited
        rows, evidence = [], []
        for ladder in ladders(doc):
            for rung in ladder["rungs"]:
                figures = [percent(rung.get(key)) for key in ("block_hit_ratio", "mass_hit_ratio", "p5_head_mass", "bound")]
                size = percent(ladder["hbm_fraction"], 2)
                rows.append((ladder["pool"], size, _label(rung), *figures, str(rung.get("bound_kind", "–")), _claim_text(rung)))
                evidence.append(rung["evidence"])
        head = ("pool", "HBM", "rung", "block hits", "mass hit", "p5 head mass", "bound", "bound kind", "note claims")
        return Table("Every pool and size; ratios in per cent of accesses or of mass", head, rows, evidence)


def _label(rung: dict[str, Any]) -> str:
    """Return the rung's name for people."""
    return str(rung.get("label") or LADDER_RUNGS.get(rung["name"], (rung["name"], 0.0))[0])


def _main_size(doc: Document) -> list[dict[str, Any]]:
    """Ladders at the main size, its own pool first, then global, layer, equal."""
    size = doc["ladder"]["hbm_fraction"]
    found: dict[str, dict[str, Any]] = {}
    for ladder in ladders(doc):
        if abs(ladder["hbm_fraction"] - size) < 1e-9:
            found.setdefault(ladder["pool"], ladder)
    return list(found.values())


def _claim(rung: dict[str, Any]) -> float | None:
    return LADDER_RUNGS[rung["name"]][1] if rung["name"] in LADDER_RUNGS else None


def _in_words(rung: dict[str, Any]) -> str:
    figures = f"hits {percent(rung['block_hit_ratio'])}, bound {percent(rung['bound'])}, claim {_claim_text(rung)}"
    return f"{_label(rung)}: {figures}"


def _claim_text(rung: dict[str, Any]) -> str:
    return percent(_claim(rung), 0)


def panel(ladder: dict[str, Any]) -> Panel:
    """Draw one ladder of a document: bars of its rungs beside their bounds and the note's claims."""
    rows = []
    for order, rung in enumerate(ladder["rungs"]):
        values = {_HIT: rung["block_hit_ratio"], _MASS: rung["mass_hit_ratio"], _BOUND: rung["bound"], _CLAIM: _claim(rung)}
        text = f"{_label(rung)}: {percent(rung['block_hit_ratio'])} hit"
        rows += [
            {"order": order, "rung": _label(rung), "text": text, "series": s, "value": v}
            for s, v in values.items()
            if v is not None
        ]
    scale, legend = alt.Scale(domain=_SERIES), alt.Legend(**legend_below(2))
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0.6, paddingOuter=0.45)),
        x=alt.X(
            "value:Q",
            scale=alt.Scale(domain=[0, 1]),
            axis=alt.Axis(**axis_whole("share of accesses (circle: of attention mass)")),
        ),
        color=alt.Color("series:N", scale=scale, legend=legend),
        tooltip=[alt.Tooltip("rung:N"), alt.Tooltip("series:N"), alt.Tooltip("value:Q", format=".1%")],
    )
    shape = alt.Shape("series:N", scale=alt.Scale(domain=_SERIES, range=_SHAPES), legend=legend)
    bars = base.transform_filter(alt.datum.series == _HIT).mark_bar(height=18)
    ticks = base.transform_filter(alt.datum.series == _BOUND).mark_tick(thickness=3, size=24, opacity=1)
    mass = base.transform_filter(alt.datum.series == _MASS).mark_point(size=190, filled=True, opacity=1)
    claims = base.transform_filter(alt.datum.series == _CLAIM).mark_point(size=110, filled=True, opacity=1)
    text = (
        alt.Chart(inline({"order": r["order"], "text": r["text"]} for r in rows if r["series"] == _HIT))
        .mark_text(align="left", baseline="bottom", dy=-13)
        .encode(y=alt.Y("order:O", axis=None), x=pixel(0), text=alt.Text("text:N"))
    )
    drawing = alt.layer(bars, ticks, mass.encode(shape=shape), claims.encode(shape=shape), text)
    return Panel(
        ladder["pool"],
        f"Pool {ladder['pool']}, {percent(ladder['hbm_fraction'], 2)} of the KV in HBM",
        f"per cent of accesses; bars, lines and circles {ladder['rungs'][0]['evidence']}, diamonds analytical (the note)",
        drawing.properties(height=44 * len(ladder["rungs"])),
    )
