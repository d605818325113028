"""What the chosen model keeps: its layers by kind, and how query heads share KV heads."""

from __future__ import annotations

from typing import Any

import altair as alt

from kvpager.core import KVGeometry
from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.layers import by_kind, example_layer, kind_of
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import facts
from kvpager.models import ModelFacts
from kvpager.models.sizes import growth
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import legend_below
from kvpager.units import format_bytes

__all__ = ["Geometry"]

_ROW = 16
"""Layers or heads in a row of a picture."""


@PARTS.register("geometry")
class Geometry(Part):
    """Layers by kind; query heads by the KV head that they read."""

    number = 1
    title = "Architecture and geometry"
    shows = "What each layer of the model keeps of a sequence, and which query heads read the same keys and values."
    known = "As published in the model's config; parameters are counted from it, and bytes follow from it."
    claims = ("arch-constants", "arch-heads-hidden", "gqa-group", "params-70b")

    def command(self, choices: Choices) -> str:
        return line("model", choices.model)

    def screen(self, choices: Choices) -> Screen:
        model = facts(choices.model)
        geometry, layer = model.geometry, example_layer(model.geometry)
        kinds = {kind: len(part.layers) for kind, part in by_kind(geometry).items()}
        heads = layer.num_kv_heads if layer else 0
        panels = (_layers(model), *((_heads(geometry, heads, model.evidence),) if heads else ()))
        held = "; ".join(f"{count} × {kind}" for kind, count in kinds.items())
        shape = ""
        if layer is not None:
            pair = f"a key of {layer.k_dim} and a value of {layer.v_dim} elements each"
            shared = f"one latent vector of {layer.k_dim} elements" if layer.latent else f"{_heads_of(heads)} with {pair}"
            shape = f" {geometry.num_q_heads} query heads share {shared}."
        token = format_bytes(geometry.kv_bytes_per_token)
        words = f"{model.title} has {len(geometry.layers)} layers: {held}.{shape} One more token adds {token} of KV."
        return Screen(panels, tuple(_figures(model, self.command(choices))), words)


def _heads_of(count: int) -> str:
    return f"{count} KV head{'' if count == 1 else 's'}"


def _figures(model: ModelFacts, command: str) -> list[Figure]:
    geometry = model.geometry
    labels = frozenset({Evidence.ANALYTICAL, model.evidence})
    counts = (
        ("in all", float(len(geometry.layers)), "layers", "layers"),
        ("with full attention and KV of their own", float(len(geometry.full_layers)), "layers", "full_layers"),
        ("KV that a token adds", float(growth(geometry).bytes_per_token), "B", "kv_bytes_per_token"),
        ("state of constant size", float(geometry.state_bytes), "B", "state_bytes"),
    )[: 4 if geometry.state_bytes else 3]
    figures = [Figure(label, Quantity(value, unit, labels), command, key) for label, value, unit, key in counts]
    for label, key in (("parameters", "params_total"), ("parameters that one token uses", "params_active")):
        quantity = getattr(model, key)
        if quantity is not None:
            figures.append(Figure(label, quantity, command, key))
    return figures


def _layers(model: ModelFacts) -> Panel:
    layers = model.geometry.layers
    kinds = list(by_kind(model.geometry))
    rows = [
        {"from": number - number % _ROW, "place": number % _ROW, "layer": number, "kind": kind_of(layer)}
        for number, layer in enumerate(layers)
    ]
    kind: dict[str, Any] = {"scale": alt.Scale(domain=kinds), "legend": alt.Legend(**legend_below(1))}
    drawing = (
        alt.Chart(inline(rows))
        .mark_point(filled=True, size=130, opacity=1)
        .encode(
            x=alt.X(
                "place:O", axis=alt.Axis(title=f"layer, {_ROW} in a row", labelAngle=0, labelOverlap=True, labelSeparation=5)
            ),
            y=alt.Y("from:O", axis=alt.Axis(title="first of the row")),
            color=alt.Color("kind:N", **kind),
            shape=alt.Shape("kind:N", **kind),
            tooltip=[alt.Tooltip("layer:O"), alt.Tooltip("kind:N")],
        )
    )
    height = 22 * (1 + (len(layers) - 1) // _ROW)
    return Panel(
        "layers",
        f"{model.title}: {len(layers)} layers",
        f"one mark a layer; {model.evidence.label}",
        drawing.properties(height=height),
    )


def _heads(geometry: KVGeometry, heads: int, evidence: Evidence) -> Panel:
    queries = geometry.num_q_heads
    rows = [
        {"from": query - query % _ROW, "place": query % _ROW, "head": query, "read": query * heads // queries}
        for query in range(queries)
    ]
    for row in rows:
        row["turn"] = row["read"] % 2
    base = alt.Chart(inline(rows)).encode(
        x=alt.X(
            "place:O", axis=alt.Axis(title=f"query head, {_ROW} in a row", labelAngle=0, labelOverlap=True, labelSeparation=5)
        ),
        y=alt.Y("from:O", axis=alt.Axis(title="first of the row")),
        tooltip=[alt.Tooltip("head:O", title="query head"), alt.Tooltip("read:O", title="KV head")],
    )
    cells = base.mark_rect().encode(color=alt.Color("turn:N", legend=None))
    numbers = base.mark_text(style="inside", fontSize=11).encode(text=alt.Text("read:O"))
    height = 26 * (1 + (queries - 1) // _ROW)
    return Panel(
        "heads",
        f"{queries} query heads, {_heads_of(heads)}",
        f"number: the KV head that a query head of a layer reads; {evidence.label}",
        alt.layer(cells, numbers).properties(height=height),
    )
