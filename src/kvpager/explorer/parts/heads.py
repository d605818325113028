"""Which kind each recorded head is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import altair as alt

from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.commands import line
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import head_types, last_of, recording, refuse_beyond
from kvpager.report.charts.base import inline
from kvpager.report.charts.heads import grid, shares
from kvpager.report.document import percent

__all__ = ["HeadTypes"]


@PARTS.register("heads")
class HeadTypes(Part):
    """Shares of head types, and the type of every query head."""

    number = 8
    title = "Head types"
    shows = "How many heads look at the first tokens, at the newest, or elsewhere, and which query heads share a KV head."
    known = "Measured for the recorded model and text; mass cannot tell retrieval from syntactic heads, so both are 'other'."
    claims = ("head-split", "head-split-sum", "head-ranges", "head-gqa-mixing", "head-retrieval-vs-97", "head-single-policy")
    sliders = ("layer", "head")

    def command(self, choices: Choices) -> str:
        return line("claims", "head-split", "head-gqa-mixing")

    def slider(self, name: str, choices: Choices) -> Slider:
        return Slider(slider_of(name).label, 0, last_of(choices)[name]) if choices.trace else slider_of(name)

    def screen(self, choices: Choices) -> Screen:
        header, found = recording(choices).header, head_types(choices)
        refuse_beyond(choices, "layer", "head")
        group = header.num_q_heads // header.num_kv_heads
        first, layer = choices.head * group, header.layers[choices.layer]
        kinds = found["by_layer"][choices.layer][first : first + group]
        every = grid(found, "by_layer", "Kind of every query head")
        chosen = alt.Chart(inline({"layer": layer, "head": first + place} for place in range(group)))
        dots = chosen.mark_text(text="●", style="inside", fontSize=9).encode(
            x=alt.X("layer:O", title="layer"), y=alt.Y("head:O", title="query head")
        )
        subtitle = f"dots: query heads of layer {layer} that read KV head {choices.head}; {found['evidence']}"
        marked = replace(every, subtitle=subtitle, drawing=alt.layer(every.drawing, dots))
        all_kinds = found["q_heads"]["kinds"]
        counts = ", ".join(f"{kind} {percent(row['share'])} ({row['count']})" for kind, row in all_kinds.items())
        bare = ", ".join(f"{kind} {percent(row['share'])}" for kind, row in found["q_heads"]["without_sink"].items())
        own = ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())
        return Screen(
            (shares(found), marked),
            (),
            f"Of {found['q_heads']['count']} query heads: {counts}; with the first 4 tokens set aside: {bare}. "
            f"KV head {choices.head} of layer {layer} serves {group} query heads: {own}. {found['rule'].capitalize()}.",
        )
