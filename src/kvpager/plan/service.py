"""What a system does for a number of users: one function for plan, comparison and sweep.

The five strategies of the catalogue differ in what happens to KV that does not fit into HBM: *tiered* reads it where it
lies, *offload* and *recompute* let users take turns, *resident* and *prefix-cache* admit no more users than fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kvpager.analysis import capacity
from kvpager.analysis.capacity import Values
from kvpager.hardware import System
from kvpager.plan.assumptions import Assumptions
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Evaluator
from kvpager.plan.load import Load, Machine, machine_of
from kvpager.plan.memory import Memory, memory_of, prefill_time
from kvpager.plan.step import Step, decode_step

__all__ = ["Service", "Site", "serve", "site_of"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Site(Generic[T]):
    """A model on a system at one context length; users not yet decided.

    `limits` are users that each constraint allows by capacity alone, for the whole system; `allowed` is the one that the
    strategy obeys.
    """

    load: Load
    system: System
    assumed: Assumptions
    machine: Machine[T]
    memory: Memory[T]
    context: T
    prefill_s: T
    limits: dict[str, T]
    allowed: T


@dataclass(frozen=True, slots=True)
class Service(Generic[T]):
    """What a number of users get: time of a token for each of them, tokens a second of all."""

    step: Step[T]
    token_s: T
    tokens_per_s: T


def site_of(of: Evaluator[T], load: Load, system: System, assumed: Assumptions, context: T) -> Site[T]:
    """Place a model on a system: bytes, capacity limits, prefill.

    Parameters
    ----------
    of : Evaluator
        What to compute with.
    load : Load
        The model.
    system : System
        The machine.
    assumed : Assumptions
        What nobody stated.
    context : Quantity or array
        Tokens of each user's context.

    Returns
    -------
    Site
        Everything that does not depend on the number of users.
    """
    tiered, replicas = system.strategy == "tiered", float(system.replicas)
    piece = load.full_bytes_per_token / max(load.full_layers, 1) * assumed.block_tokens.value
    machine = machine_of(of, system, piece)
    memory = memory_of(of, load, machine, assumed, context, system.tp, tiered)
    limits = {
        "hbm": of.step(
            "users_in_hbm",
            "users",
            f"floor(hbm_left / kv_bytes_per_user) x {system.replicas} replicas",
            lambda left, each: replicas * capacity.users_that_fit(left, each),
            memory.hbm_left_bytes,
            memory.kv_bytes_per_user,
            source="note 000 part 5",
        )
    }
    for tier in machine.tiers:
        limits[tier.name] = of.step(
            f"users_in_{tier.name}",
            "users",
            f"floor({tier.name} capacity / kv_bytes_per_user) x {system.replicas} replicas",
            lambda size, each: replicas * capacity.users_that_fit(size, each),
            tier.capacity_bytes,
            memory.kv_bytes_per_user,
            source="note 000 part 10; every complete block has a copy in the lowest tier",
        )
    if tiered:
        limits["hbm pinned"] = of.step(
            "users_pinned_in_hbm",
            "users",
            f"floor(hbm_left / pinned_bytes_per_user) x {system.replicas} replicas",
            lambda left, each: replicas * capacity.users_that_fit(left, np.maximum(each, 1e-9)),
            memory.hbm_left_bytes,
            memory.pinned_bytes_per_user,
            source="mission row 16: sinks, metadata and windows must fit",
        )
    prefill = prefill_time(of, load, machine, memory, assumed, context)
    return Site(load, system, assumed, machine, memory, context, prefill, limits, _allowed(of, system, limits))


def _allowed(of: Evaluator[T], system: System, limits: dict[str, T]) -> T:
    """Users by capacity alone: what the strategy needs room for."""
    if system.strategy == "recompute":
        return of.step("users_by_capacity", "users", "no limit if one context fits", _endless, limits["hbm"])
    if system.strategy in ("resident", "prefix-cache") or not system.tiers:
        return limits["hbm"]
    lowest = limits[max(system.tiers, key=lambda path: path.name == "nvme").name]
    other = (
        limits["hbm pinned"]
        if system.strategy == "tiered"
        else of.step("one_fits", "users", "no limit if one fits", _endless, limits["hbm"])
    )
    return of.step(
        "users_by_capacity",
        "users",
        "min(lowest tier holds every context, HBM holds what must be there)",
        lambda below, above: np.minimum(below, above),
        lowest,
        other,
        source="mission rows 3, 6 and 16",
    )


def _endless(fit: Values) -> Values:
    endless: Values = np.where(np.asarray(fit) >= 1.0, np.inf, 0.0)
    return endless


def serve(of: Evaluator[T], site: Site[T], users: T, read: T, hit_curve: HitCurve | None = None) -> Service[T]:
    """Serve `users` on the site; each step reads a share `read` of the full-attention KV.

    Parameters
    ----------
    of : Evaluator
        What to compute with.
    site : Site
        From `site_of`.
    users : Quantity or array
        Users of the whole system.
    read : Quantity or array
        read_fraction; 1 = dense attention.
    hit_curve : HitCurve, optional
        Hits by share of KV in HBM; without it, placement is between the worst and the best case.

    Returns
    -------
    Service
        Infinite times where a strategy cannot admit the users.
    """
    replicas, strategy = float(site.system.replicas), site.system.strategy
    here = of.step(
        "users_of_replica", "users", f"ceil(users / {site.system.replicas})", lambda n: np.ceil(np.divide(n, replicas)), users
    )
    if strategy == "tiered":
        step = _decode(of, site, here, read, True, hit_curve)
        token = of.step("token_s", "s", "step_s: every user gets a token a step", lambda one: one, step.step_s)
    elif strategy in ("offload", "recompute"):
        step, token = _take_turns(of, site, here, read)
    else:
        step = _decode(of, site, here, read, False, None)
        token = of.step(
            "token_s",
            "s",
            "step_s if all contexts fit into HBM, else never",
            lambda one, n, fit: np.where(np.asarray(n) * replicas <= fit, one, np.inf),
            step.step_s,
            here,
            site.limits["hbm"],
        )
    rate = of.step("tokens_per_s", "tokens/s", "users / token_s", lambda n, one: np.divide(n, one), users, token)
    return Service(step, token, rate)


def _decode(of: Evaluator[T], site: Site[T], users: T, read: T, tiered: bool, hit_curve: HitCurve | None) -> Step[T]:
    return decode_step(of, site.load, site.machine, site.memory, site.assumed, site.context, users, read, tiered, hit_curve)


def _take_turns(of: Evaluator[T], site: Site[T], users: T, read: T) -> tuple[Step[T], T]:
    """Users in groups that fit into HBM; each group's contexts are brought back before its quantum of tokens."""
    replicas = float(site.system.replicas)
    turns = of.step(
        "turns",
        "turns",
        "ceil(users of the replica / users in its HBM); never, if not even one fits",
        lambda n, fit: np.where(np.asarray(fit) >= replicas, np.ceil(np.divide(n, np.maximum(fit / replicas, 1.0))), np.inf),
        users,
        site.limits["hbm"],
    )
    running = of.step(
        "running_users", "users", "ceil(users / turns): groups of equal size", lambda n, m: np.ceil(n / m), users, turns
    )
    step = _decode(of, site, running, read, False, None)
    if site.system.strategy == "offload" and site.machine.tiers:
        tier = site.machine.tiers[0]
        back = of.step(
            "return_s",
            "s",
            f"kv_bytes_per_user / {tier.name} rate",
            lambda size, rate: size / rate,
            site.memory.kv_bytes_per_user,
            tier.read_bytes_per_s,
            source="mission row 46; one contiguous copy",
        )
    else:
        back = of.step("return_s", "s", "prefill_s: dropped and computed again", lambda one: one, site.prefill_s)
    token = of.step(
        "token_s",
        "s",
        "turns x (step_s + running x return_s / quantum); step_s if one turn is enough",
        _turn_s,
        step.step_s,
        turns,
        running,
        back,
        of.given(site.assumed.quantum_tokens),
        source="round robin; the return is not overlapped with other users' steps",
    )
    return step, token


def _turn_s(step: Values, turns: Values, running: Values, back: Values, quantum: Values) -> Values:
    time: Values = np.where(np.asarray(turns) > 1.0, turns * (step + running * back / quantum), step)
    return time
