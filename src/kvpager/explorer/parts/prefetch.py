"""Prefetch: the time that is left for it, and how much of what it brings is used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import altair as alt

from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.commands import line, plan_command
from kvpager.explorer.dots import Dot, dots
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import SHAPES
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.replays import PREFETCHERS, SIMULATED, VOLUMES, prefetched, script
from kvpager.explorer.sources import plan
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import PERCENT, legend_below

__all__ = ["Prefetch"]

_TIMES = {
    "compute_s": "compute",
    "memory_s": "reading HBM",
    "transfer_s": "fetching what is not in HBM",
    "step_s": "the whole step",
}
_PLANNED = {what: f"step.{name}" for name, what in _TIMES.items()} | {
    "left for prefetch": "traffic.prefetch_window_s",
    "bytes that could bring": "traffic.prefetch_bytes",
}
_MEASURES = {"precision": "used, of those brought", "coverage": "brought, of misses"}
_NAMES = {"blend": "notes' blend", "history": "learnt"}


@PARTS.register("prefetch")
class Prefetch(Part):
    """Times of a step with the window for prefetch, and precision and coverage by volume."""

    number = 14
    title = "Prefetch: window, candidates, precision"
    shows = (
        "How long the link is idle in a step, and what part of the units fetched ahead is used before it is dropped, by volume."
    )
    known = (
        "Analytical for the window, without knowledge of what lies in HBM: hence its range. Simulated for precision: prefetchers "
        "are replayed on the recording over the recommended placement; a fetch lasts one tick there."
    )
    claims = ("prefetch-targets", "prefetch-window", "prefetch-bytes", "prefetch-positions", "prefetch-never",
              "prefetch-two-defs", "ladder-rope-4", "compute-20ms")  # fmt: skip
    sliders = ("context", "users", "read", "prefetch")

    def command(self, choices: Choices) -> str:
        return plan_command(choices)

    def slider(self, name: str, choices: Choices) -> Slider:
        if name != "prefetch":
            return slider_of(name)
        return replace(slider_of(name), low=VOLUMES[0], high=VOLUMES[-1], steps=VOLUMES)

    def screen(self, choices: Choices) -> Screen:
        asked, answer = script(choices), plan(choices)
        rows, volume = prefetched(asked), min(VOLUMES, key=lambda one: abs(one - choices.prefetch))
        left = answer.get("traffic", {}).get("prefetch_window_s")
        panels = [_quality(asked, rows, volume)] if left is None else [_budget(choices, answer), _quality(asked, rows, volume)]
        bare = rows["none", 0.0]["block_hit_ratio"]
        said = "; ".join(
            f"{_NAMES[name]} brings {rows[name, volume]['prefetch']['issued']:,} units, uses "
            f"{100 * rows[name, volume]['prefetch']['precision']:.0f} % of them and hits "
            f"{100 * (rows[name, volume]['block_hit_ratio'] - bare):+.2f} points more"
            for name in PREFETCHERS
        )
        return Screen(
            tuple(panels),
            figures(self.command(choices), answer, _PLANNED) + _replayed(choices, rows, volume),
            f"{'No lower tier is read here' if left is None else f'The link is idle for {left.text()} of a step'}. Fetching up "
            f"to {100 * volume:g} % of HBM ahead a step, where {100 * bare:.1f} % of the accesses hit without: {said}.",
        )


def _replayed(choices: Choices, rows: dict[tuple[str, float], dict[str, Any]], volume: float) -> tuple[Figure, ...]:
    """Figures of the prefetchers at the chosen volume, each from its own replay."""
    found: tuple[Figure, ...] = ()
    for name in PREFETCHERS:
        command = line(
            "replay",
            choices.trace,
            policy="blend",
            capacity=f"{100 * NOTE_HBM_FRACTION:g}%",
            prefetch=name,
            prefetch_share=f"{100 * volume:g}%",
        )
        keys = {what: f"rows.0.prefetch.{key}" for key, what in _MEASURES.items()} | {
            "accesses that hit": "rows.0.block_hit_ratio"
        }
        for unit, named in (("1", keys), ("units", {"units brought": "rows.0.prefetch.issued"})):
            told = {f"{_NAMES[name]}: {what}": key for what, key in named.items()}
            found += figures(command, {"rows": [rows[name, volume]]}, told, unit=unit, labels=SIMULATED)
    return found


def _budget(choices: Choices, answer: dict[str, Any]) -> Panel:
    times = [Dot(what, answer["step"][name], "spent") for name, what in _TIMES.items()]
    left = answer["traffic"]["prefetch_window_s"]
    return Panel(
        "window",
        "Time of a step, and the window in it",
        f"{choices.users} users, {choices.context:,} tokens, reading {100 * choices.read:g} %; lines: from the best placement to "
        f"the worst; {left.evidence.label}",
        dots([*times, Dot("left for prefetch", left, "left")], "time (log scale)"),
    )


def _quality(asked: Any, rows: dict[tuple[str, float], dict[str, Any]], volume: float) -> Panel:
    points = [
        {"volume": ahead, "share": float(one["prefetch"][key]), "prefetcher": _NAMES[name], "measure": what}
        for (name, ahead), one in rows.items()
        for key, what in _MEASURES.items()
        if name != "none"
    ]
    names, measures = list(_NAMES.values()), list(_MEASURES.values())
    base = alt.Chart(inline(points)).encode(
        x=alt.X(
            "volume:Q",
            scale=alt.Scale(type="log", domain=[VOLUMES[0] / 1.2, VOLUMES[-1] * 1.2], nice=False),
            axis=alt.Axis(title="share of HBM fetched ahead a step, at most", values=list(VOLUMES), format=PERCENT),
        ),
        y=alt.Y("share:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title="share of units", format=PERCENT, tickCount=5)),
        color=alt.Color("prefetcher:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(1))),
    )
    dash = alt.StrokeDash("measure:N", sort=measures, legend=alt.Legend(**legend_below(1), symbolType="stroke"))
    shape = alt.Shape(
        "prefetcher:N", scale=alt.Scale(domain=names, range=SHAPES[: len(names)]), legend=alt.Legend(**legend_below(1))
    )
    here = alt.Chart(inline([{"volume": volume}])).mark_rule(strokeDash=[5, 4], color="gray").encode(x=alt.X("volume:Q"))
    header = asked.stream.recording.header
    drawing = alt.layer(
        base.mark_line().encode(strokeDash=dash), base.mark_point(size=80, filled=True, opacity=1).encode(shape=shape), here
    )
    return Panel(
        "quality",
        "How much of what is fetched ahead is used",
        f"{header.model}, {header.context_tokens:,} tokens, {100 * NOTE_HBM_FRACTION:g} % of the KV in HBM, policy blend; "
        f"dashed upright: {100 * volume:g} %; simulated",
        drawing.properties(height=250),
    )
