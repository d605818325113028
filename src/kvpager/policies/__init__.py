"""Step-level policies: one file each. See `base` for the contract.

A policy is written as ``name``, with settings ``name:alpha=0.1,persist_scores=false``, and with
wrappers after a plus sign: ``ema+sink`` pins the notes' sink zone, ``ema+sink:16`` one block of it.
"""

from __future__ import annotations

from kvpager.errors import BadInput
from kvpager.policies.base import CLAIRVOYANT, PIN, POLICIES, Policy
from kvpager.policies.wrappers import WRAPPERS
from kvpager.registry import configure

__all__ = ["CLAIRVOYANT", "PIN", "POLICIES", "Policy", "make_policy"]


def make_policy(text: str) -> Policy:
    """Build a policy from its written form, e.g. ``"lru+sink:100"``.

    Raises
    ------
    UnknownName
        For a name that no policy or wrapper has.
    BadInput
        For a setting that it does not take.
    """
    first, *wrappers = text.split("+")
    policy: Policy = configure(POLICIES, first)
    for part in wrappers:
        name, _, value = part.partition(":")
        if name not in WRAPPERS:
            raise BadInput(f"unknown wrapper {name!r} in policy {text!r}: choose among {', '.join(sorted(WRAPPERS))}")
        make, cast = WRAPPERS[name]
        try:
            policy = make(policy, cast(value)) if value else make(policy)
        except ValueError as error:
            raise BadInput(f"wrapper {part!r} in policy {text!r}: {error}") from None
    return policy
