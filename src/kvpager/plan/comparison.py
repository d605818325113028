"""Several systems for the same users, contexts, attention and service level: no number without the same service behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvpager.analysis import cost
from kvpager.errors import BadInput
from kvpager.evidence import Quantity
from kvpager.hardware import System
from kvpager.models.facts import ModelFacts
from kvpager.plan.assumptions import DEFAULT, Assumptions
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Explained
from kvpager.plan.single import plan

__all__ = ["compare"]

_of = Explained()


def compare(
    systems: Sequence[System],
    facts: ModelFacts,
    context_tokens: int,
    users: int,
    *,
    read_fraction: float | None = None,
    hit_curve: HitCurve | None = None,
    slo_s: float = 0.1,
    assumptions: Assumptions = DEFAULT,
) -> dict[str, Any]:
    """Compare systems at the same service level: as many copies of each as serve all users within `slo_s`.

    Parameters
    ----------
    systems : sequence of System
        At least two.
    facts : ModelFacts
        The model.
    context_tokens, users : int
        As in `plan`.
    read_fraction : float, optional
        As in `plan`.
    hit_curve : HitCurve, optional
        As in `plan`.
    slo_s : float
        As in `plan`.
    assumptions : Assumptions
        As in `plan`; all of these are the same for every system, so attention is as selective, hence as lossy, on each of them.

    Returns
    -------
    dict
        ``rows``, one a system: what one of it costs, what it serves, and what serving everybody costs; ``cheapest``, if
        the ranges separate one; ``left_out``, what no sum counts.

    Raises
    ------
    BadInput
        For fewer than two systems, or the same one twice.
    """
    names = [system.name for system in systems]
    if len(names) < 2 or len(set(names)) < len(names):
        raise BadInput(f"compare: {', '.join(names) or 'nothing'} given: name at least two different systems")
    plans = [
        plan(
            facts,
            system,
            context_tokens,
            users,
            read_fraction=read_fraction,
            hit_curve=hit_curve,
            slo_s=slo_s,
            assumptions=assumptions,
        )
        for system in systems
    ]
    rows = [_row(system, answer) for system, answer in zip(systems, plans, strict=True)]
    first = rows[0]
    for row in rows[1:]:
        row["saving_of_owning"] = {
            key: _of.step(
                f"{key} saving",
                "1",
                f"({first['system']} - {row['system']}) / {first['system']}",
                cost.saving,
                first["owning"][key],
                row["owning"][key],
                source="note 000 part 16: of one system against one, whatever each of them serves",
            )
            for key in ("capex_usd", "tco_usd", "power_w")
        }
    return {
        "model": facts.name,
        "asked": plans[0]["asked"],
        "rows": rows,
        "cheapest": _cheapest(rows),
        "left_out": {row["system"]: list(system.left_out()) for row, system in zip(rows, systems, strict=True)},
        "warnings": {row["system"]: answer["warnings"] for row, answer in zip(rows, plans, strict=True)},
        "assumptions": plans[0]["assumptions"],
    }


def _row(system: System, answer: dict[str, Any]) -> dict[str, Any]:
    owning = {key: answer["cost"][key] for key in ("capex_usd", "tco_usd", "power_w")}
    memory = {"hbm_bytes": system.capacity_bytes("hbm")} | {path.name + "_bytes": path.capacity_bytes() for path in system.tiers}
    row: dict[str, Any] = {
        "system": system.name,
        "title": system.title,
        "strategy": system.strategy,
        "memory": memory,
        "owning": owning,
    }
    row["answers"] = answer["answers"]
    at_slo = answer["answers"]["users_at_slo"]
    if not isinstance(at_slo, Quantity):
        row["serving_all"] = at_slo
        return row
    copies = _of.step(
        "copies",
        "systems",
        "ceil(users / users_at_slo)",
        _copies,
        answer["asked"]["users"],
        at_slo,
        source="mission row 44: the same service level enforced",
    )
    row["serving_all"] = {"copies": copies} | {
        key: _of.step(f"{key} for all users", quantity.unit, f"copies x {key}", lambda n, one: n * one, copies, quantity)
        for key, quantity in owning.items()
    }
    return row


def _copies(users: Any, each: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.ceil(np.divide(users, each))


def _cheapest(rows: list[dict[str, Any]]) -> str:
    """Name the system whose TCO for all users is below every other's range; say so if none is."""
    costs = {row["system"]: row["serving_all"]["tco_usd"] for row in rows if isinstance(row["serving_all"], dict)}
    missing = [row["system"] for row in rows if row["system"] not in costs]
    if missing:
        return f"not derivable: {', '.join(missing)} has no answer at this service level without read_fraction or a hit curve"
    best: str = min(costs, key=lambda name: costs[name].value)
    if not np.isfinite(costs[best].value):
        return "none: no system serves even one user at this service level"
    unclear = [name for name in costs if name != best and costs[name].ends[0] <= costs[best].ends[1]]
    if unclear:
        return f"not separable: the range of {best} overlaps that of {', '.join(unclear)}"
    return best
