"""RoPE: how slowly its pairs turn, and how little distance alone bounds."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np

from kvpager.analysis.rope import relative_envelope, wavelength_tokens
from kvpager.claims.check import row
from kvpager.claims.ledger import givens
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.dots import log_axis
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import facts
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import axis_whole, legend_below
from kvpager.units import format_count

__all__ = ["Rope"]

_CLAIMS = ("rope-theta0", "rope-theta32", "rope-theta63", "rope-pairs", "rope-bound-zero")
_PRIOR = "the note's prior 1/(1 + d/100)"
_DISTANCES = np.unique(np.geomspace(1, 131_072, 160).astype(np.int64))


@PARTS.register("rope")
class Rope(Part):
    """Wavelengths of the pairs, and the envelope over distance."""

    number = 7
    title = "RoPE: frequencies, wavelengths and the true envelope"
    shows = (
        "After how many tokens each rotated pair has turned once, and how far distance alone bounds a product of query and key."
    )
    known = "Analytical, for unscaled RoPE: scaling of long contexts (Llama 3.1, YaRN) is left out, and content decides the rest."
    claims = ("rope-base", *_CLAIMS, "rope-locality-geometric", "rope-distance-bars", "x-model-name")
    sliders = ("distance",)

    def command(self, choices: Choices) -> str:
        return line("claims", *_CLAIMS)

    def screen(self, choices: Choices) -> Screen:
        model, note = facts(choices.model), float(givens()["note-rope-base"].value)
        width = model.rope_dim or model.head_dim
        if not width or width % 2:
            raise BadInput(f"model {choices.model!r} has no heads of an even width that RoPE could rotate: choose another model")
        both = "the model's and the note's" if model.rope_base == note else "the note's"
        bases = {f"base {note:,.0f}, {both}": note}
        if model.rope_base not in (None, note):
            bases = {f"base {model.rope_base:,.0f}, the model's": model.rope_base, **bases}
        name, base = next(iter(bases.items()))
        turns = wavelength_tokens(np.arange(width // 2), base, width)
        there = float(relative_envelope(choices.distance, base, width))
        least = float(relative_envelope(_DISTANCES, base, width).min())
        unknown = (
            "" if model.rope_base is not None else f" The facts of {model.title} do not state its base, so the note's is drawn."
        )
        unknown += "" if model.rope_dim is not None else f" All {width} elements of a head are taken as rotated."
        return Screen(
            (_wavelengths(bases, width, choices.distance), _envelope(bases, width, choices.distance)),
            tuple(_figures(self.command(choices))),
            f"{model.title}: with {name}, {width // 2} pairs turn once in {turns[0]:.1f} to {turns[-1]:,.0f} tokens; "
            f"{(turns <= choices.distance).sum()} of them have turned at least once within {choices.distance:,} tokens. "
            f"There the bound stands at {there:.2f} of its value at distance 0, and up to "
            f"{_DISTANCES[-1]:,} tokens it never falls below {least:.2f}: it does not fall to zero, and ranks no block.{unknown}",
        )


def _figures(command: str) -> list[Figure]:
    labels = ("frequency of pair 0, base 10,000", "of pair 32", "of pair 63", "pairs", "bound at 100,000 tokens, relative")
    figures = []
    for place, (claim, label) in enumerate(zip(_CLAIMS, labels, strict=True)):
        found = row(claim)["derived"]
        for number, value in enumerate(found["value"] if isinstance(found["value"], list) else [found["value"]]):
            quantity = Quantity(value, found["unit"], frozenset({Evidence.of(found["evidence"])}))
            key = f"{place}.derived" + (f".value.{number}" if isinstance(found["value"], list) else "")
            figures.append(Figure(label, quantity, command, key))
    return figures


def _kind(names: list[str]) -> dict[str, Any]:
    return {
        "color": alt.Color("series:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(1))),
        "strokeDash": alt.StrokeDash("series:N", scale=alt.Scale(domain=names), legend=alt.Legend(**legend_below(1))),
    }


def _wavelengths(bases: dict[str, float], width: int, distance: int) -> Panel:
    pairs = np.arange(width // 2)
    rows: list[dict[str, Any]] = [
        {"pair": int(pair), "low": float(tokens), "series": name}
        for name, base in bases.items()
        for pair, tokens in zip(pairs, wavelength_tokens(pairs, base, width), strict=True)
    ]
    x, _ = log_axis([each["low"] for each in rows], "tokens of one turn (log scale)", format_count)
    drawing = alt.layer(
        alt.Chart(inline(rows)).mark_line(strokeWidth=2).encode(
            x=x, y=alt.Y("pair:Q", axis=alt.Axis(title="pair", tickCount=5), scale=alt.Scale(reverse=True)), **_kind(list(bases)),
            order=alt.Order("pair:Q"),
        ),
        alt.Chart(inline([{"low": distance}])).mark_rule(strokeDash=[2, 3]).encode(x=x),
    )  # fmt: skip
    subtitle = f"dotted: {distance:,} tokens; pairs left of it have turned at least once; analytical"
    return Panel("wavelengths", "Tokens in which a pair turns once", subtitle, drawing.properties(height=220))


def _envelope(bases: dict[str, float], width: int, distance: int) -> Panel:
    curves = {name: relative_envelope(_DISTANCES, base, width) for name, base in bases.items()} | {
        _PRIOR: 1 / (1 + _DISTANCES / 100)
    }
    rows = [
        {"low": int(tokens), "bound": float(value), "series": name}
        for name, values in curves.items()
        for tokens, value in zip(_DISTANCES, values, strict=True)
    ]
    x, _ = log_axis([1.0, float(_DISTANCES[-1])], "tokens between query and key (log scale)", format_count, tight=True)
    y = alt.Y("bound:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(**axis_whole("bound, relative to distance 0")))
    here = float(relative_envelope(distance, next(iter(bases.values())), width))
    point = alt.Chart(inline([{"low": distance, "bound": here}]))
    drawing = alt.layer(
        alt.Chart(inline(rows)).mark_line(strokeWidth=2).encode(x=x, y=y, **_kind(list(curves))),
        point.mark_rule(strokeDash=[2, 3]).encode(x=x),
        point.mark_point(filled=True, size=110, opacity=1).encode(x=x, y=y),
    )
    subtitle = f"per cent of the bound at distance 0; point: {distance:,} tokens; analytical, the prior an assumption"
    return Panel("envelope", "What distance alone bounds", subtitle, drawing.properties(height=260))
