"""How many users' KV caches fit, and what stops the next one."""

from __future__ import annotations

import altair as alt

from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import plan_command
from kvpager.explorer.figures import figures
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import plan
from kvpager.report.charts.base import Panel, inline
from kvpager.report.charts.style import legend_below

__all__ = ["MemoryWall"]

GIB = 1 << 30


@PARTS.register("memory-wall")
class MemoryWall(Part):
    """Bytes that users need against the bytes that HBM leaves."""

    number = 5
    title = "The memory wall"
    shows = "What the KV caches of the users need, beside what HBM has left once weights and activations are in it."
    known = "Analytical: bytes follow from the model's shape; what an engine sets aside for activations is assumed."
    claims = ("wall-capacity-limits",)
    sliders = ("context", "users")

    def command(self, choices: Choices) -> str:
        return plan_command(choices)

    def screen(self, choices: Choices) -> Screen:
        answer = plan(choices)
        capacity = answer["capacity"]
        each, left = capacity["kv_bytes_per_user"].value / GIB, max(0.0, capacity["hbm_left_bytes"].value / GIB)
        rows = [
            {"users": users, "GiB": users * each, "what": "needed by all users' KV"} for users in range(2 * choices.users + 1)
        ]
        lines = (
            alt.Chart(inline(rows))
            .mark_line()
            .encode(
                x=alt.X("users:Q", title="users at the same time"),
                y=alt.Y("GiB:Q", title="GiB"),
                color=alt.Color("what:N", legend=alt.Legend(**legend_below(2))),
            )
        )
        wall = alt.Chart(inline([{"GiB": left}])).mark_rule(strokeDash=[6, 4]).encode(y=alt.Y("GiB:Q"))
        here = (
            alt.Chart(inline([rows[choices.users]]))
            .mark_point(size=120, filled=True, opacity=1)
            .encode(x=alt.X("users:Q"), y=alt.Y("GiB:Q"))
        )
        panel = Panel(
            "users",
            f"KV of {choices.users} users at {choices.context:,} tokens",
            f"dashed: what HBM has left, {left:,.1f} GiB; analytical",
            alt.layer(lines, wall, here).properties(height=280),
        )
        named = {
            "KV of one user": "capacity.kv_bytes_per_user",
            "left in HBM": "capacity.hbm_left_bytes",
            "users that all tiers hold": "answers.users_by_capacity",
            "users within the time of a token": "answers.users_at_slo",
        }
        return Screen(
            (panel,),
            figures(self.command(choices), answer, named),
            f"{choices.users} users need {choices.users * each:,.1f} GiB, HBM has {left:,.1f} GiB left. "
            f"What stops the next user: {answer['answers']['binding_constraint']}.",
        )
