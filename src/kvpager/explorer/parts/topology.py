"""The way from each tier into the accelerator, and what a step's misses take over it."""

from __future__ import annotations

from typing import Any

import altair as alt

from kvpager.evidence import Quantity, propagate
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import plan_command
from kvpager.explorer.dots import Dot, dots
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import plan, system
from kvpager.hardware import System
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import legend_below
from kvpager.units import format_quantity

__all__ = ["Topology"]

_STOPS = {"upstream": (0, 1), "endpoints": (1, 2), "media": (2, 3)}
_WAYS = {"upstream": "the link into the GPU", "endpoints": "the tier's own links", "media": "the memory itself"}
_BINDS, _IDLE, _WHOLE = "sets the pace of its tier", "could carry more", "as the plan counts it"


@PARTS.register("topology")
class Topology(Part):
    """Every link's rate, which one binds, and the time that a step's misses take over each."""

    number = 9
    title = "The memory topology and its bottleneck"
    shows = "What each link between the tiers and the GPU carries, which one sets the pace, and how long a step's misses keep it."
    known = "From data sheets and standards, with assumed efficiencies; the least of a path's limits is its rate."
    claims = (
        "cxl-x16-64", "cxl-256gbs", "cxl-upstream", "cxl-1tb", "b200-bw", "b200-cxl-host", "cxl-ratio-bw", "x-cxl-bandwidth",
        "viable-if-97",
    )  # fmt: skip
    sliders = ("context", "users", "read")

    def command(self, choices: Choices) -> str:
        return plan_command(choices)

    def screen(self, choices: Choices) -> Screen:
        machine, answer = system(choices.system), plan(choices)
        moved = _moved(machine, answer)
        panels, rows = [_links(machine)], _times(machine, moved)
        if rows:
            rows.append(Dot("all, with each piece's fixed time", answer["step"]["transfer_s"], _WHOLE))
            subtitle = "a step's bytes over each limit of their path; lines: ranges; assumption"
            panels.append(Panel("misses", "What a step's misses take", subtitle, dots(rows, "time (log scale)")))
        paths = "; ".join(
            f"{path.name}: {_text(machine.bandwidth(path.name))}, set by {_WAYS[path.bottleneck()]}" for path in machine.tiers
        )
        there = "; ".join(f"{_text(size)} from {name}" for name, size in moved.items() if size.value) or "nothing"
        step = answer["step"]
        return Screen(
            tuple(panels),
            tuple(_figures(machine, answer, self.command(choices))),
            f"HBM is read at {_text(machine.bandwidth('hbm'))}. {paths or 'There is no tier below HBM'}. A step fetches {there}, "
            f"which takes {_text(step['transfer_s'])} of the step's {_text(step['step_s'])}.",
        )


def _moved(machine: System, answer: dict[str, Any]) -> dict[str, Quantity]:
    """Bytes that a step of one replica fetches, by tier."""
    found = {path.name: answer["traffic"].get(f"{path.name}_utilisation") for path in machine.tiers}
    return {name: load.inputs[0] for name, load in found.items() if load is not None}


def _links(machine: System) -> Panel:
    names = ["hbm", *(path.name for path in machine.tiers)]
    whole = machine.bandwidth("hbm")
    rows = [_row("hbm", 0, 3, whole, f"{machine.accelerators} × {machine.accelerator.name}", _BINDS)]
    for path in machine.tiers:
        own = path.count, path.medium.name
        parts = {"upstream": (path.upstream_count, path.upstream.name), "media": own}
        if path.link is not None:
            parts["endpoints"] = (path.count, path.link.name)
        for name, rate in path.limits().items():
            first, last = _STOPS[name]
            first = 1 if name == "media" and path.link is None else first
            count, part = parts[name]
            rows.append(_row(path.name, first, last, rate, f"{count} × {part}", _BINDS if name == path.bottleneck() else _IDLE))
    heads = "['link into GPU', 'own links', 'memory'][floor(datum.value)]"
    axis = alt.Axis(values=[0.5, 1.5, 2.5], labelExpr=heads, orient="top", grid=False, ticks=False, domain=False)
    base = alt.Chart(inline(rows)).encode(
        y=alt.Y("tier:N", sort=names, title=None, axis=alt.Axis(domain=False, ticks=False)),
        tooltip=[alt.Tooltip("tier:N"), alt.Tooltip("part:N"), alt.Tooltip("rate:N"), alt.Tooltip("bound:N")],
    )
    x = alt.X("from:Q", title=None, axis=axis, scale=alt.Scale(domain=[0, 3], nice=False))
    kinds = list(dict.fromkeys(row["bound"] for row in rows))
    bound: dict[str, Any] = {
        "scale": alt.Scale(domain=kinds),
        "legend": alt.Legend(**legend_below(1), symbolType="stroke", symbolStrokeWidth=4),
    }
    lines = base.mark_rule(strokeCap="butt").encode(
        x=x,
        x2=alt.X2("to:Q"),
        color=alt.Color("bound:N", **bound),
        strokeDash=alt.StrokeDash("bound:N", scale=alt.Scale(domain=kinds, range=[[1, 0], [5, 3]]), legend=None),
        strokeWidth=alt.StrokeWidth("GB:Q", scale=alt.Scale(type="log", range=[2, 14]), legend=None),
    )
    middle = base.encode(x=alt.X("middle:Q", axis=axis))
    drawing = alt.layer(
        lines,
        middle.mark_text(dy=-15, fontWeight=600).encode(text=alt.Text("rate:N")),
        *(
            middle.transform_filter(f"datum.middle {sign} 1.5").mark_text(dy=down, fontSize=10).encode(text=alt.Text("part:N"))
            for sign, down in (("!=", 17), ("==", 30))
        ),
    )
    subtitle = f"{machine.name}: bytes a second one way, efficiency included; {whole.evidence.label}"
    return Panel("links", "Who reaches the GPU how fast", subtitle, drawing.properties(height=72 * len(names)))


def _row(tier: str, first: int, last: int, rate: Quantity, part: str, bound: str) -> dict[str, Any]:
    place = {"tier": tier, "from": first, "to": last, "middle": (first + last) / 2}
    return {**place, "rate": _text(rate), "GB": rate.value / 1e9, "part": part, "bound": bound}


def _times(machine: System, moved: dict[str, Quantity]) -> list[Dot]:
    rows = []
    for path in machine.tiers:
        if path.name in moved and moved[path.name].value > 0:
            for name, rate in path.limits().items():
                size = moved[path.name]
                time = propagate(name, "s", "bytes / rate", lambda a, b: a * machine.replicas / b, [size, rate])
                rows.append(Dot(f"{path.name}, over {_WAYS[name]}", time, _BINDS if name == path.bottleneck() else _IDLE))
    return rows


def _figures(machine: System, answer: dict[str, Any], command: str) -> list[Figure]:
    found = [
        Figure("reading HBM in a step", answer["step"]["memory_s"], command, "step.memory_s"),
        Figure("fetching in a step", answer["step"]["transfer_s"], command, "step.transfer_s"),
        Figure("share of what is read that is not in HBM", answer["step"]["miss_share"], command, "step.miss_share"),
    ]
    for path in machine.tiers:
        load = answer["traffic"].get(f"{path.name}_utilisation")
        if load is not None:
            size, _, rate = load.inputs
            place = f"traffic.{load.name}"
            found += [
                Figure(f"{path.name}, rate of its path", rate, command, f"{place}.inputs.{rate.name}"),
                Figure(f"{path.name}, fetched in a step", size, command, f"{place}.inputs.{size.name}"),
                Figure(f"{path.name}, share of the time that its path is busy", load, command, place),
            ]
    return found


def _text(quantity: Quantity) -> str:
    return format_quantity(quantity.value, quantity.unit)
