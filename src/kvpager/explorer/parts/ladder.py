"""The ladder: five rungs beside their bounds and what the note claims of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvpager.errors import BadInput
from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.explorer.commands import line
from kvpager.explorer.figures import figures
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.replays import SIMULATED
from kvpager.explorer.sources import document, recording
from kvpager.report.charts.ladder import panel
from kvpager.report.document import Document, ladders, percent

__all__ = ["Rungs"]


@PARTS.register("ladder")
class Rungs(Part):
    """The run's ladder at one of its sizes, in each pool."""

    number = 15
    title = "The ladder beside its bounds, and the note's claim"
    shows = "What each rung of the note's ladder hits on the recording, the most that any policy could, and what the note claims."
    known = (
        "Simulated on a recording of real attention; the bounds are exact, or proven upper ones. The claims are modelled, and "
        "their author has withdrawn them."
    )
    claims = ("ladder-values", "ladder-steps", "ladder-sum", "ladder-25", "ladder-rope-4", "hot-97-plausible", "dense-hit-rate")
    sliders = ("hbm",)

    def command(self, choices: Choices) -> str:
        size = _size(document(choices), choices) if choices.run else choices.hbm
        return line("ladder", choices.trace or "trace.zarr", hbm=f"{100 * size:g}%")

    def slider(self, name: str, choices: Choices) -> Slider:
        sizes = _sizes(document(choices)) if choices.run else ()
        return replace(slider_of(name), low=sizes[0], high=sizes[-1], steps=sizes) if sizes else slider_of(name)

    def screen(self, choices: Choices) -> Screen:
        doc = document(choices)
        size = _size(doc, choices)
        shown = [one for one in ladders(doc) if one["hbm_fraction"] == size][:2]
        words = "; ".join(f"in the {one['pool']} pool {', '.join(_said(rung) for rung in one['rungs'])}" for one in shown)
        return Screen(
            tuple(panel(one) for one in shown),
            self._figures(choices, doc, shown[0]),
            f"With {percent(size, 2)} of the KV in HBM, hits, and in brackets the most that any policy could have on the rung: "
            f"{words}. The note claims 72, 80, 87, 93 and 97 %.",
        )

    def _figures(self, choices: Choices, doc: Document, front: dict[str, Any]) -> tuple[Figure, ...]:
        """What `ladder` prints, if the run is one of the chosen recording."""
        if not choices.trace or recording(choices).header.tokens_sha256 != doc.get("trace", {}).get("tokens_sha256"):
            return ()
        named = {"dense attention, at most": "bounds.dense"}
        for number, rung in enumerate(front["rungs"]):
            name = rung.get("label", rung["name"])
            named |= {
                f"{name}: accesses that hit": f"ladder.rungs.{number}.block_hit_ratio",
                f"{name}: bound": f"ladder.rungs.{number}.bound",
            }
        plain = next(rung for rung in front["rungs"] if "prefetch" not in rung)
        printed = {"ladder": front, "bounds": {"dense": plain["dense_bound"]}}
        return figures(self.command(choices), printed, named, labels=SIMULATED)


def _sizes(doc: Document) -> tuple[float, ...]:
    """Shares of the KV in HBM for which the run has a ladder."""
    sizes = tuple(sorted({one["hbm_fraction"] for one in ladders(doc)}))
    if not sizes:
        raise BadInput("the run's document has no ladder: name one of 'kvpager demo' or 'kvpager ladder --json'")
    return sizes


def _size(doc: Document, choices: Choices) -> float:
    return min(_sizes(doc), key=lambda size: abs(size - choices.hbm))


def _said(rung: dict[str, Any]) -> str:
    return f"{rung.get('label', rung['name'])} {percent(rung['block_hit_ratio'])} ({percent(rung['bound'])})"
