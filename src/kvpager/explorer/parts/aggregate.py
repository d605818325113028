"""The per-head matrix of a block, and what it costs if heads decide together."""

from __future__ import annotations

from functools import partial
from typing import Any

import altair as alt
import numpy as np

from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.commands import line
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import Mark, grouped
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.replays import SIMULATED, at_once, by_layer, marked, room, row, script, warmup
from kvpager.explorer.sources import last_of, refuse_beyond
from kvpager.replay.linear import Script
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import legend_below

__all__ = ["Aggregate"]

_FOLDS = {"own": "each head by its own score", "mean": "mean over a layer's heads", "max": "maximum over a layer's heads"}
_HIT, _KEPT = "accesses that hit, at equal bytes", "blocks that stay"
_ANY = ("if any head of the layer marks it", "if any head of all layers marks it")
_EVERY = 8
"""Steps between those in which what stays is counted."""


@PARTS.register("aggregate")
class Aggregate(Part):
    """Scores of one block by layer and head; hits and kept blocks by who decides."""

    number = 13
    title = "The per-head matrix, and its aggregates"
    shows = "Which heads would keep a block, each by its own score, then what stays and what hits if heads decide together."
    known = (
        "Simulated on recorded mass: each head marks its hottest blocks by EMA, as many as HBM's share; hits are replayed in one "
        "pool, with one score for a layer's heads."
    )
    claims = ("max-agg", "agg-units", "agg-layers", "agg-any-head", "head-single-policy")
    sliders = ("block", "alpha", "hbm")

    def command(self, choices: Choices) -> str:
        own = f"ema:alpha={choices.alpha:g}"
        policies = ",".join([own, *(f"{own}+{fold}:layer" for fold in _FOLDS if fold != "own")])
        return line("replay", choices.trace or "trace.zarr", policy=policies, capacity=f"{100 * choices.hbm:g}%")

    def slider(self, name: str, choices: Choices) -> Slider:
        if name != "block" or not choices.trace:
            return slider_of(name)
        return Slider(slider_of(name).label, 0, last_of(choices)[name])

    def screen(self, choices: Choices) -> Screen:
        asked, units = script(choices), room(choices)
        refuse_beyond(choices, "block")
        replays = [partial(by_layer, asked, choices.alpha, fold, units) for fold in _FOLDS]
        rows = [row(asked, outcome, units) for outcome in at_once(replays)]
        matrix, kept = _matrix(asked, choices), _kept(asked, choices)
        wanted = sum(cell["kept"] for cell in matrix)
        named = {f"accesses that hit, {who}": f"rows.{i}.block_hit_ratio" for i, who in enumerate(_FOLDS.values())}
        named["accesses that hit under dense attention, at most"] = "rows.0.dense_bound"
        hits = "; ".join(f"{who} {100 * one['block_hit_ratio']:.1f} %" for who, one in zip(_FOLDS.values(), rows, strict=True))
        stay = "; ".join(f"{who} {100 * share:.0f} %" for who, share in kept.items())
        return Screen(
            (_map(choices, matrix, wanted), _together(choices, rows, kept)),
            figures(self.command(choices), {"rows": rows}, named, labels=SIMULATED),
            f"{wanted} of {len(matrix)} heads would keep block {choices.block}. With {100 * choices.hbm:g} % of the KV in HBM, "
            f"of the blocks stay: {stay}. At equal bytes hit: {hits}.",
        )


def _matrix(asked: Script, choices: Choices) -> list[dict[str, Any]]:
    """The block's score and fate at each head after the last step."""
    heads, numbers = asked.shape[2], asked.stream.recording.header.layers
    scores, hot = marked(asked, asked.stream.recording.steps - 1, choices.alpha, choices.hbm)
    return [
        {"layer": numbers[at // heads], "head": at % heads, "score": float(score), "kept": bool(stays)}
        for at, (score, stays) in enumerate(zip(scores[choices.block], hot[choices.block], strict=True))
    ]


def _kept(asked: Script, choices: Choices) -> dict[str, float]:
    """Share of the blocks that stay, by who decides; mean over every eighth step after the warm-up."""
    _, layers, heads = asked.shape
    found = []
    for step in range(warmup(asked), asked.stream.recording.steps, _EVERY):
        _, hot = marked(asked, step, choices.alpha, choices.hbm)
        by_any = hot.reshape(-1, layers, heads).any(axis=2)
        found.append((hot.mean(), by_any.mean(), hot.any(axis=1).mean()))
    return dict(zip((_FOLDS["own"], *_ANY), np.mean(found, axis=0).tolist(), strict=True))


def _map(choices: Choices, matrix: list[dict[str, Any]], wanted: int) -> Panel:
    few = max(cell["head"] for cell in matrix) < 20
    base = alt.Chart(inline(matrix)).encode(
        x=alt.X(
            "layer:O",
            axis=alt.Axis(title="layer", labelAngle=0, labelOverlap=True, labelSeparation=4),
            scale=alt.Scale(paddingInner=0.08),
        ),
        y=alt.Y("head:O", axis=alt.Axis(title="KV head", labelOverlap=True), scale=alt.Scale(paddingInner=0.08)),
        tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("head:O"), alt.Tooltip("score:Q", format=".2~%"), alt.Tooltip("kept:N")],
    )
    look = legend_below(1) | {"gradientLength": 110, "tickCount": 2, "format": ".1~%"}
    layers = [
        base.transform_filter(alt.datum.kept == kept)
        .mark_rect(stroke=None)
        .encode(color=alt.Color("score:Q", scale=alt.Scale(type="sqrt", range=ramp), legend=alt.Legend(**look | {"title": name})))
        for kept, ramp, name in ((False, "heatmap", "score, head drops it"), (True, "ramp", "score, head keeps it"))
        if any(cell["kept"] == kept for cell in matrix)
    ]
    dot = base.transform_filter(alt.datum.kept).mark_text(style="inside", text="●", fontSize=9)
    drawing = alt.layer(*layers, dot).resolve_scale(color="independent")
    return Panel(
        "matrix",
        f"Block {choices.block}, by layer and head",
        f"EMA of mass after the last step, α = {choices.alpha:g}; dot: among that head's hottest {100 * choices.hbm:g} %, which "
        f"{wanted} of {len(matrix)} heads say; simulated",
        drawing.properties(height=max(90, 26 * (1 + max(cell["head"] for cell in matrix))) if few else 320),
    )


def _together(choices: Choices, rows: list[dict[str, Any]], kept: dict[str, float]) -> Panel:
    marks = [Mark(who, _HIT, one["block_hit_ratio"]) for who, one in zip(_FOLDS.values(), rows, strict=True)]
    marks += [Mark(who, _KEPT, share) for who, share in kept.items()]
    return Panel(
        "together",
        "What stays, and what hits, by who decides",
        f"per cent of blocks, and of accesses; dashed: what HBM holds, {100 * choices.hbm:g} %; simulated",
        grouped(marks, "share", rule=choices.hbm),
    )
