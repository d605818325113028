"""Fetch a block, or compute it again."""

from __future__ import annotations

from typing import Any

from kvpager.explorer.answers import breakeven
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.dots import Dot, dots
from kvpager.explorer.figures import at, figures
from kvpager.explorer.grouped import Mark, grouped
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import system
from kvpager.report.charts.base import Panel

__all__ = ["Breakeven"]

_GRIDS = {
    "note": "the note's terms",
    "here.note_formula": "its formula, this accelerator's peak",
    "here.alone": "with attention and memory, a pass of its own",
    "here.piggybacked": "with both, in a batch that runs anyway",
}
_MODES = {
    "tail": "compute the block, earlier KV at hand",
    "suffix": "compute it and all that follows",
    "full_prefix": "compute the whole context",
}


@PARTS.register("breakeven")
class Breakeven(Part):
    """Ratios of recompute to fetch for the whole grid, and times."""

    number = 17
    title = "Fetch, or compute again"
    shows = (
        "How many times longer it takes to compute a block's KV than to fetch it, for each rate and utilisation; then the times."
    )
    known = (
        "Computed: the note's grid on the note's terms, and what it leaves out, attention over the context and the time to read "
        "all weights. Rates and utilisations are the note's assumptions."
    )
    claims = ("nine-combos", "orders-range", "recompute-memfloor", "recompute-attn", "interior-prefix", "interior-floor",
              "x-nvme-vs-recompute", "gap-widens")  # fmt: skip
    sliders = ("tokens", "context")

    def command(self, choices: Choices) -> str:
        return line(
            "breakeven",
            model=choices.model,
            accelerator=system(choices.system).accelerator.name,
            tokens=choices.tokens,
            position=choices.context,
        )

    def screen(self, choices: Choices) -> Screen:
        document = breakeven(choices)
        found, where = document["breakeven"], f"{choices.tokens} tokens after {choices.context:,}"
        rates = [fetch.inputs[1].name for fetch in document["note"]["fetch_s"]]
        panels = (
            Panel(
                "grid",
                "Recompute over fetch",
                f"{where}, {document['accelerator']}; dashed: equal; three points a line: MFU 50, 40, 25 %; "
                f"{document['note']['lowest'].evidence.label}",
                grouped(_ratios(document, rates), "times longer (log scale)", log=lambda value: f"{value:g} x", rule=1),
            ),
            Panel(
                "times",
                "Time to have the block's KV",
                f"{where}, {document['accelerator']}; lines: ranges; {document['modes']['tail'].evidence.label}",
                dots(_times(document, rates), "time (log scale)"),
            ),
        )
        named = {"bytes of the block": "block_bytes", "rate above which fetching wins": "breakeven.bandwidth_bytes_per_s"}
        named |= {
            f"context from which fetching wins, {rate}": f"breakeven.position_tokens.{rate}" for rate in found["position_tokens"]
        }
        named |= {f"time: {what}": f"modes.{mode}" for mode, what in _MODES.items()}
        for key, what in _GRIDS.items():
            named |= {
                f"recompute over fetch, least, {what}": f"{key}.lowest",
                f"recompute over fetch, most, {what}": f"{key}.highest",
            }
        note, alone = document["note"], document["here"]["alone"]
        return Screen(
            panels,
            figures(self.command(choices), document, named),
            f"On the note's terms recompute takes {note['lowest'].value:,.0f} to {note['highest'].value:,.0f} times as long as a "
            f"fetch, with attention and memory {alone['lowest'].ends[0]:,.0f} to {alone['highest'].ends[1]:,.0f}. "
            f"Fetching wins above {found['bandwidth_bytes_per_s'].text()}. The rule says: {document['decision']}.",
        )


def _ratios(document: dict[str, Any], rates: list[str]) -> list[Mark]:
    return [
        Mark(what, f"fetch at {rate}", ratio.value, ratio.ends if ratio.is_range else None)
        for key, what in _GRIDS.items()
        for rate, ratios in zip(rates, at(document, key)["ratios"], strict=True)
        for ratio in ratios
    ]


def _times(document: dict[str, Any], rates: list[str]) -> list[Dot]:
    fetches = zip(
        [*rates, "7 GB/s, one NVMe drive"], [*document["note"]["fetch_s"], *document["nvme"]["note"]["fetch_s"]], strict=True
    )
    times = [Dot(f"fetch at {rate}", time, "fetch") for rate, time in fetches]
    return times + [Dot(what, document["modes"][mode], "compute") for mode, what in _MODES.items()]
