"""Systems at equal service: how many of each, what they cost, what they draw."""

from __future__ import annotations

import math
from typing import Any

from kvpager.explorer.answers import compare, compared
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import line
from kvpager.explorer.dots import Dot, dots
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import Mark, grouped
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.report.charts.base import Panel

__all__ = ["Systems"]

_MONEY = {"capex_usd": "purchase", "tco_usd": "purchase and three years of power"}
_FOR_ALL = {"copies": "copies", "tco_usd": _MONEY["tco_usd"], "power_w": "power"}


@PARTS.register("systems")
class Systems(Part):
    """As many copies of each system as serve all users within the time of a token."""

    number = 16
    title = "Systems compared at equal service"
    shows = (
        "What it costs, and draws, to serve all users within the time of a token, with as many copies of a system as that takes."
    )
    known = (
        "Computed from a catalogue whose prices are mostly assumptions, which the ranges carry. The notes compared one system "
        "with one, whatever each of them serves."
    )
    claims = ("base-users", "user-16x", "user-16x-vs-cost", "missing-tp", "capex-36", "tco-37", "power-51", "target-10tok")
    sliders = ("context", "users", "read", "slo_ms")

    def command(self, choices: Choices) -> str:
        return line(
            "compare",
            *compared(choices),
            model=choices.model,
            context=choices.context,
            users=choices.users,
            read=f"{100 * choices.read:g}%",
            slo=f"{choices.slo_ms:g}ms",
        )

    def screen(self, choices: Choices) -> Screen:
        document = compare(choices)
        asked = (
            f"{choices.users} users, {choices.context:,} tokens, {choices.slo_ms:g} ms a token, reading {100 * choices.read:g} %"
        )
        rows = document["rows"]
        money = [
            Mark(_needed(row), name, row["serving_all"][key].value, row["serving_all"][key].ends)
            for row in rows
            for key, name in _MONEY.items()
        ]
        power = [Dot(_needed(row), row["serving_all"]["power_w"], "power") for row in rows]
        label = rows[0]["serving_all"]["tco_usd"].evidence.label
        panels = (
            Panel(
                "cost",
                "What it costs to serve everybody",
                f"{asked}; lines: ranges, to the edge where perhaps nobody is served; {label}",
                grouped(money, "US dollars (log scale)", log=lambda value: f"${value:,.0f}"),
            ),
            Panel("power", "What it draws", f"the same; {label}", dots(power, "power (log scale)")),
        )
        named: dict[str, str] = {}
        for number, row in enumerate(rows):
            name, at = row["system"], f"rows.{number}"
            named |= {f"{name}: users within the time of a token": f"{at}.answers.users_at_slo"}
            named |= {f"{name}: {what} for everybody": f"{at}.serving_all.{key}" for key, what in _FOR_ALL.items()}
        words = "; ".join(_said(row) for row in rows)
        return Screen(
            panels,
            figures(self.command(choices), document, named),
            f"For {asked}: {words}. Cheapest: {document['cheapest']}.",
        )


def _needed(row: dict[str, Any]) -> str:
    copies = row["serving_all"]["copies"].value
    return f"{row['system']}, {copies:,.0f} needed" if math.isfinite(copies) else f"{row['system']}, serves nobody"


def _said(row: dict[str, Any]) -> str:
    serving = row["serving_all"]
    if not math.isfinite(serving["copies"].value):
        return _needed(row)
    return f"{_needed(row)}, {serving['tco_usd'].text()}, {serving['power_w'].text()}"
