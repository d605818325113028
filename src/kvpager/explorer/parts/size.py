"""KV of one token, one block and one context, and context against capacity."""

from __future__ import annotations

from functools import partial
from typing import Any

import altair as alt

from kvpager.core import KVGeometry
from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line, plan_command
from kvpager.explorer.dots import Dot, dots, log_axis
from kvpager.explorer.layers import example_layer
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import facts, plan, system
from kvpager.hardware import System
from kvpager.models.sizes import KVDtype, architectural_bytes, engine_reserved_bytes, kv_dtype, rank_geometries, rule_of
from kvpager.report.charts.base import Panel, inline, pixel
from kvpager.report.charts.style import legend_below
from kvpager.units import format_bytes, format_count

__all__ = ["Size"]

_NEEDED, _RESERVED = "what the architecture needs", "what an engine reserves"
_CONTEXTS = tuple(1 << power for power in range(10, 21))


@PARTS.register("size")
class Size(Part):
    """From the bytes of one head's token to those of a whole context, and when that outgrows HBM."""

    number = 3
    title = "KV layout and size"
    shows = "How few bytes one token takes in one layer, what a whole context makes of it, and where HBM ends."
    known = "Analytical: bytes follow from the model's config; what an engine reserves follows its published rule for blocks."
    claims = ("kv-per-token", "kv-formula-dimension", "kv-4k", "kv-128k", "kv-1m", "hbm-192", "hbm-kv-left", "payload-4kib")
    sliders = ("context", "tokens")

    def command(self, choices: Choices) -> str:
        machine = system(choices.system)
        ranks = machine.tp if machine.tp > 1 else None
        return line("model", choices.model, context=choices.context, tp=ranks, dtype=machine.kv_dtype)

    def screen(self, choices: Choices) -> Screen:
        machine, geometry, stored = _rank(choices)
        needed = architectural_bytes(geometry, choices.context, stored)
        reserved = engine_reserved_bytes(geometry, choices.context, kv=stored)
        capacity = plan(choices)["capacity"]
        left, sizes = capacity["hbm_left_bytes"], _sizes(choices)
        panels = (_context(choices, left), Panel(
            "layout",
            "From one token to a whole context",
            f"bytes of keys and values as {stored.name} (log scale); analytical",
            dots(sizes, "bytes of KV (log scale)", show=format_bytes, base=1024.0),
        ))  # fmt: skip
        command, planned = self.command(choices), plan_command(choices)
        labels = frozenset({Evidence.ANALYTICAL, facts(choices.model).evidence})
        whole = capacity["users_by_constraint"]["hbm"]
        figures = (
            Figure(_NEEDED, Quantity(float(needed), "B", labels), command, "bytes.architectural"),
            Figure(
                f"{_RESERVED} ({rule_of(geometry)})", Quantity(float(reserved), "B", labels), command, "bytes.engine_reserved"
            ),
            Figure("left in HBM", left, planned, "capacity.hbm_left_bytes"),
            Figure("context whose KV outweighs the weights", capacity["crossover_tokens"], planned, "capacity.crossover_tokens"),
            Figure("whole contexts that fit into HBM", whole, planned, "capacity.users_by_constraint.hbm"),
        )
        chain = "; ".join(f"{row.name} {format_bytes(row.quantity.value)}" for row in sizes)
        kept = format_bytes(machine.tp * needed)
        together = "" if machine.tp == 1 else f" The {machine.tp} ranks of a copy keep {kept} of it together."
        return Screen(
            panels,
            figures,
            f"{chain}.{together} HBM of {choices.system} has {format_bytes(max(0.0, left.value))} left for KV in a copy of the "
            f"model; whole contexts that fit in all: {format_count(whole.value)}.",
        )


def _rank(choices: Choices) -> tuple[System, KVGeometry, KVDtype]:
    """The system, what one of its ranks holds of the model, and how KV is stored there."""
    machine = system(choices.system)
    return machine, rank_geometries(facts(choices.model).geometry, machine.tp)[0], kv_dtype(machine.kv_dtype)


def _sizes(choices: Choices) -> list[Dot]:
    """One row a step of the layout, smallest first."""
    geometry, stored = facts(choices.model).geometry, kv_dtype(system(choices.system).kv_dtype)
    layer = example_layer(geometry)
    found: list[tuple[str, float]] = []
    if layer is not None:
        head = stored.vector_bytes(layer.k_dim) + stored.vector_bytes(layer.v_dim)
        found += [
            ("one token, layer and KV head", head),
            (f"one token and layer, {layer.num_kv_heads} KV head{'s' * (layer.num_kv_heads > 1)}", layer.num_kv_heads * head),
            (f"block of {choices.tokens} tokens, layer and KV head", choices.tokens * head),
        ]
    one, block = (architectural_bytes(geometry, tokens, stored) - geometry.state_bytes for tokens in (1, choices.tokens))
    whole = architectural_bytes(geometry, choices.context, stored)
    found += [
        (f"one token, {len(geometry.layers)} layers", one),
        (f"block of {choices.tokens} tokens, {len(geometry.layers)} layers", block),
        (f"context of {choices.context:,} tokens", whole),
    ]
    labels = frozenset({Evidence.ANALYTICAL})
    return [Dot(name, Quantity(float(size), "B", labels), "bytes") for name, size in sorted(found, key=lambda row: row[1])]


def _context(choices: Choices, left: Quantity) -> Panel:
    """Bytes of one context by its tokens, with HBM of the system."""
    machine, geometry, stored = _rank(choices)
    series = {
        _NEEDED: partial(architectural_bytes, geometry, kv=stored),
        _RESERVED: partial(engine_reserved_bytes, geometry, kv=stored),
    }
    whole = machine.tp * machine.accelerator.hbm_bytes.value
    rows = [
        {"low": tokens, "GB": float(machine.tp * size(tokens)) / 1e9, "series": name}
        for name, size in series.items()
        for tokens in _CONTEXTS
    ]
    x, _ = log_axis(_CONTEXTS, "tokens of the context (log scale)", lambda tokens: f"{tokens / 1024:g}K", 2.0)
    y = alt.Y("GB:Q", scale=alt.Scale(type="log"), axis=alt.Axis(title="GB (log scale)", tickCount=4, format=",~g"))
    names = list(series)
    lines = (
        alt.Chart(inline(rows))
        .mark_line()
        .encode(
            x=x,
            y=y,
            color=alt.Color("series:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(1))),
            strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(1))),
        )
    )
    ends: list[tuple[float, str, Any, int]] = [(whole, "HBM", "bottom", -3), (left.value, "HBM left", "top", 4)]
    walls = [
        alt.Chart(inline([{"GB": size / 1e9, "text": text}])).mark_text(align="left", baseline=side, dy=off).encode(
            y=y, x=pixel(4), text=alt.Text("text:N")
        )
        for size, text, side, off in ends if size > 0
    ]  # fmt: skip
    sizes = alt.Chart(inline({"GB": size / 1e9} for size in (whole, left.value) if size > 0))
    here = [{"low": choices.context, "GB": float(machine.tp * series[_NEEDED](choices.context)) / 1e9}]
    drawing = alt.layer(
        lines,
        sizes.mark_rule(strokeDash=[2, 3]).encode(y=y),
        *walls,
        alt.Chart(inline(here)).mark_point(size=130, filled=True, opacity=1).encode(x=x, y=y),
    )
    subtitle = f"GB; point: {choices.context:,} tokens; dotted: HBM of {choices.system}, and what weights leave of it; analytical"
    return Panel("context", "One context against HBM", subtitle, drawing.properties(height=260))
