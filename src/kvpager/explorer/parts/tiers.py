"""The four tiers: whom each would hold, and from where a step reads."""

from __future__ import annotations

from typing import Any

from kvpager.analysis.capacity import Values
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import plan_command
from kvpager.explorer.figures import figures
from kvpager.explorer.grouped import Mark, grouped
from kvpager.explorer.part import PARTS, Part, Screen
from kvpager.explorer.sources import plan, system
from kvpager.plan.step import TITLES, tier_shares
from kvpager.report.charts.base import Panel
from kvpager.units import format_quantity

__all__ = ["Tiers"]

_NAMES = {"hbm": "HBM, whole contexts", "hbm pinned": "HBM, what must stay there"} | {
    name: title[0].upper() + title[1:] for name, title in TITLES.items()
}
_LIES, _READ = "of all KV", "of a step's reads"


@PARTS.register("tiers")
class Tiers(Part):
    """Users that each tier holds, and shares of KV and of reads by tier."""

    number = 10
    title = "Four tiers, and who fits where"
    shows = "How many users' contexts each tier would hold alone, then where the chosen users' KV lies and where a step reads it."
    known = (
        "Analytical: capacities and the model's shape decide. How much of what is read lies in HBM is not known without a "
        "recording: the point assumes that reads do not care for placement, the line goes from the worst placement to the best."
    )
    claims = ("hbm-split", "nvme-16tb", "meta-640mib", "hot-2.31", "hot-97-plausible", "cxl-67pct", "users-17-slo",
              "users-cxl-limit", "nvme-share-contradiction", "tier0-content")  # fmt: skip
    sliders = ("context", "users", "read")

    def command(self, choices: Choices) -> str:
        return plan_command(choices)

    def screen(self, choices: Choices) -> Screen:
        answer = plan(choices)
        limits = answer["capacity"]["users_by_constraint"]
        held = [
            Mark(f"{_NAMES.get(name, name)}: {_count(limit.value)}", "users", limit.value, limit.ends)
            for name, limit in limits.items()
        ]
        panels = [
            Panel(
                "users",
                "Users that each tier holds",
                f"whole contexts of {choices.context:,} tokens; dashed: the {choices.users} that are asked for; "
                f"{answer['answers']['users_by_capacity'].evidence.label}",
                grouped(held, "users at the same time (log scale)", log=_count, rule=choices.users),
            )
        ]
        words = [f"A tier alone holds: {'; '.join(mark.name for mark in held)}."]
        if answer["strategy"] == "tiered":
            marks = _by_tier(choices, answer)
            panels.append(
                Panel(
                    "reads",
                    f"Where KV of {choices.users} users lies, and is read",
                    f"per cent; a step reads {100 * choices.read:g} % of the KV; {answer['step']['miss_share'].evidence.label}",
                    grouped(marks, "share"),
                )
            )
            said = (f"{mark.name} {100 * mark.value:.1f} %" for mark in marks if mark.series == _LIES)
            words.append(f"Of the KV of {choices.users} users lies in {', in '.join(said)}.")
        else:
            words.append(f"This system's strategy is {answer['strategy']}: no step reads from a lower tier.")
        named = {f"users in {_NAMES.get(name, name)}": f"capacity.users_by_constraint.{name}" for name in limits} | {
            "share of the KV in HBM": "step.hbm_share",
            "share of the reads not in HBM": "step.miss_share",
            "bytes that a step reads": "step.read_bytes",
            "bytes that a step fetches": "step.miss_bytes",
            "score metadata of a user": "capacity.metadata_bytes_per_user",
            "what must stay in HBM of a user": "capacity.pinned_bytes_per_user",
        }
        return Screen(tuple(panels), figures(self.command(choices), answer, named), " ".join(words))


def _count(users: float) -> str:
    return format_quantity(users, "users")


def _by_tier(choices: Choices, answer: dict[str, Any]) -> list[Mark]:
    """Shares of the KV and of the reads, fastest tier first; lower tiers are filled in their order."""
    step, machine = answer["step"], system(choices.system)
    held, missed = step["hbm_share"].value, step["miss_share"]
    capacities: list[Values] = [path.capacity_bytes().value / machine.replicas for path in machine.tiers]
    shares = [float(share) for share in tier_shares(held, step["read_bytes"].value / choices.read, capacities)]
    marks = [Mark("HBM", _LIES, held), Mark("HBM", _READ, 1 - missed.value, (1 - missed.ends[1], 1 - missed.ends[0]))]
    for path, share in zip(machine.tiers, shares, strict=True):
        name = _NAMES.get(path.name, path.name)
        low, high = (share * end for end in missed.ends)
        marks += [Mark(name, _LIES, (1 - held) * share), Mark(name, _READ, share * missed.value, (low, high))]
    return marks
