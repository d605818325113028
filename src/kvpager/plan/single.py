"""One model on one system: does it fit, how fast, for how many, at what cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kvpager.analysis import capacity, cost, transfer
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity, combine, explain
from kvpager.hardware import System
from kvpager.models.facts import ModelFacts
from kvpager.plan.assumptions import DEFAULT, Assumptions
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Explained, asked
from kvpager.plan.load import load_of
from kvpager.plan.service import Service, Site, serve, site_of
from kvpager.plan.traffic import traffic

__all__ = ["NOT_DERIVABLE", "headline_lines", "plan", "users_at_slo"]

NOT_DERIVABLE = (
    "not derivable: how much of the KV a step reads, and how much of that HBM holds, is not known; "
    "give read_fraction (1 = dense attention) or a hit curve from a trace"
)
_MOST_USERS = 1 << 14
_of = Explained()


def plan(
    facts: ModelFacts,
    system: System,
    context_tokens: int,
    users: int = 1,
    *,
    read_fraction: float | None = None,
    hit_curve: HitCurve | None = None,
    slo_s: float = 0.1,
    assumptions: Assumptions = DEFAULT,
) -> dict[str, Any]:
    """Answer a capacity planner's questions; every number is a `Quantity` with formula, inputs, source and range.

    Parameters
    ----------
    facts : ModelFacts
        From `kvpager.models.resolve`.
    system : System
        From `kvpager.hardware.load`.
    context_tokens, users : int
        Tokens of each user's context; users at the same time.
    read_fraction : float, optional
        Share of the KV that attention reads in a step; below 1 attention is selective and its output changes. Systems
        that keep all KV in HBM are taken as dense if it is not given; a tiered one is then not derivable.
    hit_curve : HitCurve, optional
        Measured hits by share of KV in HBM; brings its own read_fraction.
    slo_s : float
        Longest time of a token that counts as served.
    assumptions : Assumptions
        What nobody stated; see `Assumptions.but`.

    Returns
    -------
    dict
        Sections of quantities; `kvpager.plan.evaluate.as_json` makes it JSON.

    Raises
    ------
    BadInput
        For a number out of range.
    """
    _check(context_tokens, users, read_fraction, slo_s)
    load = load_of(facts, system.weights_dtype, system.kv_dtype, system.tp)
    site = site_of(_of, load, system, assumptions, asked("context_tokens", context_tokens, "tokens"))
    n, slo = asked("users", users, "users"), asked("slo_s", slo_s, "s")
    read = _read(system, read_fraction, hit_curve)
    document: dict[str, Any] = {
        "model": facts.name,
        "system": system.name,
        "title": system.title,
        "strategy": system.strategy,
        "asked": {"context_tokens": site.context, "users": n, "slo_s": slo} | ({} if read is None else {"read_fraction": read}),
        "answers": {"users_by_capacity": site.allowed, "fits": users <= site.allowed.value},
        "capacity": _capacity(site, n),
        "prefill": {"prefill_s": site.prefill_s} | _resume(site),
        "cost": _owning(site),
        "warnings": _warnings(facts, system, context_tokens, users, site, read),
        "left_out": list(system.left_out()),
        "assumptions": {name: getattr(assumptions, name) for name in assumptions.__dataclass_fields__},
    }
    if read is None:
        document["answers"] |= {"users_at_slo": NOT_DERIVABLE, "token_s": NOT_DERIVABLE}
        return document
    served = serve(_of, site, n, read, hit_curve)
    at_slo, binding = users_at_slo(site, read, hit_curve, slo)
    meets = served.token_s.value <= slo_s and users <= site.allowed.value
    document["answers"] |= {
        "users_at_slo": at_slo,
        "binding_constraint": binding,
        "token_s": served.token_s,
        "tokens_per_s": served.tokens_per_s,
        "meets_slo": meets,
    }
    if hit_curve is not None:
        document["curves"] = [hit_curve.to_json()]
    document["step"] = _step(served)
    document["traffic"] = traffic(site, served)
    document["cost"] |= _using(site, document["cost"]["tco_usd"], at_slo, served)
    return document


def _check(context_tokens: int, users: int, read_fraction: float | None, slo_s: float) -> None:
    if context_tokens < 1 or users < 1:
        raise BadInput(f"plan: context {context_tokens} and users {users} must both be at least 1")
    if read_fraction is not None and not 0.0 < read_fraction <= 1.0:
        raise BadInput(f"plan: read_fraction {read_fraction} is not in (0, 1]: 1 is dense attention, 0.05 reads a twentieth")
    if not 0.0 < slo_s < math.inf:
        raise BadInput(f"plan: the service level of {slo_s} s a token must be positive, for example 0.1")


def _read(system: System, read_fraction: float | None, hit_curve: HitCurve | None) -> Quantity | None:
    if hit_curve is not None:
        if read_fraction is not None and not math.isclose(read_fraction, hit_curve.read_fraction):
            raise BadInput(
                f"plan: the hit curve was measured with read_fraction {hit_curve.read_fraction:g}, not {read_fraction:g}: "
                "leave read_fraction out, or replay the trace with it"
            )
        labels = frozenset({Evidence.SIMULATED, Evidence.ASSUMPTION})  # that it holds for this model and context is assumed
        return Quantity(hit_curve.read_fraction, "1", labels, "", hit_curve.source, "read_fraction")
    if read_fraction is not None:
        return asked("read_fraction", read_fraction, "1")
    return (
        None
        if system.strategy == "tiered"
        else Quantity(1.0, "1", frozenset({Evidence.ASSUMPTION}), "", "dense attention, as none was given", "read_fraction")
    )


def users_at_slo(site: Site[Quantity], read: Quantity, hit_curve: HitCurve | None, slo: Quantity) -> tuple[Quantity, str]:
    """Most users whose token takes no longer than the service level and whose KV fits, with the range of both.

    Parameters
    ----------
    site : Site
        Where.
    read : Quantity
        read_fraction.
    hit_curve : HitCurve, optional
        As in `serve`.
    slo : Quantity
        Seconds a token.

    Returns
    -------
    tuple of (Quantity, str)
        The users, and what stops the next one.
    """
    seen: dict[int, Quantity] = {0: asked("token_s", 0.0, "s")}

    def token_s(n: int) -> Quantity:
        if n not in seen:
            seen[n] = serve(_of, site, asked("users", n, "users"), read, hit_curve).token_s
        return seen[n]

    def most(end: int, capacity: float) -> int:
        """Largest n that meets the level, by longer, then shorter strides: time never falls with users.

        `end`: 0 value, 1 low, 2 high.
        """
        limit, good, stride, growing = int(min(capacity, _MOST_USERS)), 0, 1, True
        while stride:
            n = good + stride
            if n <= limit and (token_s(n).value, *token_s(n).ends)[end] <= slo.value:
                good = n
            else:
                growing = False
            stride = 2 * stride if growing else stride // 2
        return good

    low_capacity, high_capacity = site.allowed.ends
    value, low, high = most(0, site.allowed.value), most(2, low_capacity), most(1, high_capacity)
    if value >= _MOST_USERS:
        binding = f"none up to {_MOST_USERS} users"
    elif value >= site.allowed.value:
        binding = _capacity_binding(site)
    else:
        binding = f"service level ({slo.text()} a token)"
    there = token_s(value)
    at = replace(there, name="token_s of that many users")
    inputs = (slo, site.allowed, at)
    labels = combine(*(part.labels for part in inputs))
    formula, source = "largest n with token_s(n) <= slo_s that fits", "mission row 28"
    shown = Quantity(float(value), "users", labels, formula, source, "users_at_slo", float(low), float(high), inputs)
    return shown, binding


def _capacity_binding(site: Site[Quantity]) -> str:
    same = [name for name, limit in site.limits.items() if limit.value == site.allowed.value]
    names = {"hbm": "HBM", "hbm pinned": "HBM (sinks, metadata and windows)", "dram": "host DRAM", "cxl": "CXL", "nvme": "NVMe"}
    return f"capacity: {names.get(same[0], same[0])}" if same else "capacity: HBM, one context must fit"


def _capacity(site: Site[Quantity], users: Quantity) -> dict[str, Any]:
    memory, system = site.memory, site.system
    needed = _of.step(
        "hbm_needed_bytes",
        "B",
        f"users x kv_bytes_per_user + {system.replicas} x (weights + {system.tp} x activations)",
        lambda n, each, weights, work: n * each + system.replicas * (weights + system.tp * work),
        users,
        memory.kv_bytes_per_user,
        memory.weights_bytes,
        site.assumed.activations_bytes,
        source="note 000 part 5: the memory wall, nothing tiered",
    )
    slack = _of.step(
        "hbm_slack_bytes",
        "B",
        "hbm of all accelerators - hbm_needed; negative = what must live in lower tiers",
        lambda hbm, taken: capacity.hbm_slack_bytes(system.replicas * hbm, taken),
        site.machine.hbm_bytes,
        needed,
        source="mission row 4",
    )
    crossover = _of.step(
        "crossover_tokens",
        "tokens",
        "weights / KV bytes a token, full attention only",
        lambda weights, kv, tokens: weights / np.maximum(kv / tokens, 1e-9),
        memory.weights_bytes,
        memory.kv_bytes_per_user,
        site.context,
        source="note 004 paragraph 10",
    )
    return {
        "weights_bytes": memory.weights_bytes,
        "kv_bytes_per_user": memory.kv_bytes_per_user,
        "pinned_bytes_per_user": memory.pinned_bytes_per_user,
        "metadata_bytes_per_user": memory.metadata_bytes_per_user,
        "hbm_left_bytes": memory.hbm_left_bytes,
        "hbm_needed_bytes": needed,
        "hbm_slack_bytes": slack,
        "crossover_tokens": crossover,
        "users_by_constraint": dict(site.limits),
    }


def _resume(site: Site[Quantity]) -> dict[str, Quantity]:
    """Time to bring a whole context back, by tier, against computing it again."""
    return {
        f"resume_from_{tier.name}_s": _of.step(
            f"resume_from_{tier.name}_s",
            "s",
            f"kv_bytes_per_user / {tier.name} rate + t0",
            lambda size, rate, t0: transfer.fetch_s(size, rate, 1.0, t0),
            site.memory.kv_bytes_per_user,
            tier.read_bytes_per_s,
            tier.t0_s,
            source="mission row 46",
        )
        for tier in site.machine.tiers
    }


def _step(served: Service[Quantity]) -> dict[str, Quantity]:
    step = served.step
    names = ("hbm_share", "read_bytes", "miss_share", "miss_bytes", "compute_s", "memory_s", "transfer_s", "exposed_s", "step_s")
    return {name: getattr(step, name) for name in names}


def _owning(site: Site[Quantity]) -> dict[str, Quantity]:
    system = site.system
    found = {"capex_usd": system.capex_usd(), "power_w": system.power_w()}
    found["tco_usd"] = _of.step(
        "tco_usd",
        "USD",
        "capex + power x 8,760 h x years x electricity x PUE",
        cost.tco_usd,
        found["capex_usd"],
        found["power_w"],
        site.assumed.years,
        system.electricity_usd_per_kwh,
        system.pue,
        source="note 000 part 16; mission row 44: no staff, space, network or failures",
    )
    return found


def _using(site: Site[Quantity], tco: Quantity, at_slo: Quantity, served: Service[Quantity]) -> dict[str, Quantity]:
    source = "mission row 44"
    return {
        "usd_per_user": _of.step("usd_per_user", "USD", "tco_usd / users_at_slo", cost.usd_per_user, tco, at_slo, source=source),
        "usd_per_million_tokens": _of.step(
            "usd_per_million_tokens",
            "USD",
            "1e6 x tco_usd / (tokens_per_s x seconds of the years x busy_share)",
            cost.usd_per_million_tokens,
            tco,
            served.tokens_per_s,
            site.assumed.years,
            site.assumed.busy_share,
            source=source,
        ),
    }


def _warnings(
    facts: ModelFacts, system: System, context: int, users: int, site: Site[Quantity], read: Quantity | None
) -> list[str]:
    found = []
    longest = facts.geometry.max_context_tokens
    if longest is not None and context > longest:
        found.append(f"{context:,} tokens are more than the model's {longest:,}: a sizing figure only")
    if read is not None and Evidence.SIMULATED in read.labels:
        found.append(f"hits are those of another run, assumed to hold here: {read.source}")
    if read is not None and read.value < 1.0:
        found.append(f"attention reads {read.value:.4g} of the KV: the output changes; check it with 'kvpager ladder'")
    if system.hypothetical:
        found.append("no such machine can be bought")
    if system.note:
        found.append(system.note)
    if site.memory.hbm_left_bytes.value <= 0:
        found.append("the weights and activations alone do not fit into HBM")
    if users > site.allowed.value:
        found.append(f"{users} users do not fit: {site.allowed.value:g} at most by capacity")
    return found


def headline_lines(document: dict[str, Any]) -> list[str]:
    """Return the derivation of the plan's answers, step by step; each step once."""
    answers = [value for value in document["answers"].values() if isinstance(value, Quantity)]
    costs = [value for value in document["cost"].values() if isinstance(value, Quantity)]
    return explain(document["capacity"]["kv_bytes_per_user"], *answers, *costs)
