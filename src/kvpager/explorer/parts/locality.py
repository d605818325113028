"""Where the recorded attention mass lies, and what the best blocks would hold of it."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import numpy as np

from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import locality
from kvpager.report.charts.base import inline
from kvpager.report.charts.locality import coverage, zones
from kvpager.report.document import percent

__all__ = ["MassLies"]


@PARTS.register("locality")
class MassLies(Part):
    """Mass by age, and by the best blocks."""

    number = 6
    title = "Where attention mass lies"
    shows = "How much attention the oldest and newest tokens get, and how much of it the best few blocks hold."
    known = "Measured for the recorded model and text; the ledger's finding is the mean of several texts."
    claims = ("locality-80-10", "locality-vs-97", "locality-mass-at-5.4", "hot-97-plausible", "dense-hit-rate")
    sliders = ("hbm",)

    def command(self, choices: Choices) -> str:
        return line("claims", "locality-80-10", "hot-97-plausible")

    def screen(self, choices: Choices) -> Screen:
        profile = locality(choices)
        curve, need = profile["coverage"], profile["blocks_needed"]
        mean, least = (float(np.interp(choices.hbm, curve["share"], curve[name])) for name in ("mean", "p5_head"))
        best = coverage(profile)
        here = alt.Chart(inline([{"share": choices.hbm, "mass": mean}])).encode(x=alt.X("share:Q"))
        mark = alt.layer(
            best.drawing,
            here.mark_rule(strokeDash=[6, 4]),
            here.mark_point(shape="diamond", size=180, filled=True, opacity=1).encode(y=alt.Y("mass:Q")),
        )
        held = percent(choices.hbm)
        title = f"The best {held} hold {percent(mean)}"
        return Screen(
            (zones(profile), replace(best, title=title, drawing=mark.properties(height=220))),
            (),
            f"{profile['model']} on {profile['text']}, {profile['context_tokens']:,} tokens: the newest 10 % of the tokens get "
            f"{percent(profile['newest_10_percent'])} of the mass, the first 4 tokens {percent(profile['first_4'])}. If each KV "
            f"head kept its own best {held} of the blocks, chosen anew at every step, they would hold {percent(mean)} of "
            f"the mass on average, and at most {percent(least)} in one head of twenty; 97 % of the mass takes "
            f"{percent(need['0.97']['mean_share'])} of the blocks. Mass is not hits: dense attention reads every block, so a "
            f"pool of {held} of them hits {held}.",
        )
