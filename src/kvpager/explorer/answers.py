"""Answers of the planner that several systems or a whole grid make up, each computed once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kvpager.explorer.choices import Choices
from kvpager.explorer.sources import facts, system

__all__ = ["breakeven", "compare", "compared", "ledger"]

_COMPARED = ("note-000-offload", "note-000-cxl", "b200-host-cxl", "b200x4-tp")
"""The notes' two, what can be bought instead, and all KV in HBM."""


def compared(choices: Choices) -> tuple[str, ...]:
    """Names of the systems that the chosen one is compared with, itself among them."""
    return tuple(dict.fromkeys((*_COMPARED, choices.system)))


def compare(choices: Choices) -> dict[str, Any]:
    """The comparison, as ``kvpager compare`` gives it."""
    return _compare(compared(choices), choices.model, choices.context, choices.users, choices.read, choices.slo_ms / 1000)


@lru_cache(maxsize=64)
def _compare(names: tuple[str, ...], model: str, context: int, users: int, read: float, slo_s: float) -> dict[str, Any]:
    from kvpager.plan.comparison import compare as run

    return run([system(name) for name in names], facts(model), context, users, read_fraction=read, slo_s=slo_s)


def breakeven(choices: Choices) -> dict[str, Any]:
    """Fetch against recompute on the chosen system's accelerator, as ``kvpager breakeven`` gives it."""
    return _breakeven(choices.model, choices.system, choices.tokens, choices.context)


@lru_cache(maxsize=64)
def _breakeven(model: str, name: str, tokens: int, position: int) -> dict[str, Any]:
    from kvpager.plan.economics import breakeven as run

    return run(facts(model), system(name).accelerator, tokens, position)


@lru_cache(maxsize=1)
def ledger() -> list[dict[str, Any]]:
    """All claims, as ``kvpager claims`` gives them."""
    from kvpager.claims.check import row
    from kvpager.claims.ledger import claims

    return [row(name) for name in claims()]
