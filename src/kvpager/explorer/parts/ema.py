"""The EMA of a recorded block, as its smoothing weight moves."""

from __future__ import annotations

import altair as alt
import numpy as np

from kvpager.analysis.locality import evidence_of
from kvpager.analysis.placement import ema_half_life_steps, ema_scores
from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.commands import line
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import last_of, recording, refuse_beyond
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import legend_below

__all__ = ["Ema"]


@PARTS.register("ema")
class Ema(Part):
    """Mass that a block drew step by step, and the score that follows it."""

    number = 11
    title = "Scores that follow attention: the EMA"
    shows = "The mass that one KV head gave one block at each step, and its exponential moving average."
    known = "Measured: the mass is recorded; the average is arithmetic."
    claims = ("ema-alpha", "ema-decisions", "ema-feedback")
    sliders = ("layer", "head", "block", "alpha")

    def command(self, choices: Choices) -> str:
        return line("replay", choices.trace, policy=f"ema:alpha={choices.alpha:g}", capacity=f"{100 * choices.hbm:g}%")

    def slider(self, name: str, choices: Choices) -> Slider:
        if name == "alpha" or not choices.trace:
            return slider_of(name)
        return Slider(slider_of(name).label, 0, last_of(choices)[name])

    def screen(self, choices: Choices) -> Screen:
        found = recording(choices)
        refuse_beyond(choices, "layer", "head", "block")
        mass = np.asarray(found.mass[:, choices.layer, choices.head, choices.block], np.float64)
        score = ema_scores(mass, choices.alpha, mass[0])
        series = {"mass of the step": mass, f"EMA, α = {choices.alpha:g}": score}
        rows = [
            {"step": step, "share": float(value), "series": name}
            for name, values in series.items()
            for step, value in enumerate(values)
        ]
        drawing = (
            alt.Chart(inline(rows))
            .mark_line()
            .encode(
                x=alt.X("step:Q", title="step"),
                y=alt.Y("share:Q", title="share of the head's mass"),
                color=alt.Color("series:N", scale=alt.Scale(domain=list(series)), legend=alt.Legend(**legend_below(2))),
                strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(domain=list(series)), legend=alt.Legend(**legend_below(2))),
            )
        )
        half = float(ema_half_life_steps(choices.alpha)) if choices.alpha < 1 else 0.0
        first = choices.block * found.header.block_size
        panel = Panel(
            "score",
            f"Layer {choices.layer}, KV head {choices.head}, tokens {first:,} to {first + found.header.block_size - 1:,}",
            f"mass: {evidence_of(found).label}; the average is computed",
            drawing.properties(height=280),
        )
        return Screen(
            (panel,),
            (),
            f"The block drew between {mass.min():.3g} and {mass.max():.3g} of the head's mass in {len(mass)} steps; with α = "
            f"{choices.alpha:g} a score halves in {half:.1f} steps without attention, and ends at {score[-1]:.3g}.",
        )
