"""What the planner assumes when nobody says otherwise: each with its range, its source and what it controls.

These are uncalibrated for your machine. They are printed with every plan that uses one, and every one can be replaced
by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity

__all__ = ["DEFAULT", "Assumptions"]


def _assumed(name: str, value: float, unit: str, source: str, low: float | None = None, high: float | None = None) -> Quantity:
    return Quantity(value, unit, frozenset({Evidence.ASSUMPTION}), "", source, name, low, high)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Inputs of the model that neither the catalogue nor the question gives.

    Parameters
    ----------
    mfu : Quantity
        Share of the dense peak that matrix products reach.
    kv_efficiency : Quantity
        Share of the memory's peak rate that attention reaches on blocks of KV.
    activations_bytes : Quantity
        Workspace of one accelerator: activations, graphs, communication buffers.
    placement : Quantity
        How well HBM holds what will be read: 1 = as much of it as fits, 0 = unrelated, -1 = none that need not.
    lookahead : Quantity
        Share of a layer's own time that hides its fetch when the demand is known only with the query.
    in_flight : Quantity
        Transfers that overlap their fixed times.
    sink_tokens : Quantity
        Pinned first tokens of a sequence.
    entry_bytes : Quantity
        Score metadata of one (layer, KV head, block).
    block_tokens : Quantity
        Tokens of a block.
    quantum_tokens : Quantity
        Tokens that a user generates before its context is swapped for another's.
    years : Quantity
        Life of the system.
    busy_share : Quantity
        Share of that time in which it decodes.
    """

    mfu: Quantity
    kv_efficiency: Quantity
    activations_bytes: Quantity
    placement: Quantity
    lookahead: Quantity
    in_flight: Quantity
    sink_tokens: Quantity
    entry_bytes: Quantity
    block_tokens: Quantity
    quantum_tokens: Quantity
    years: Quantity
    busy_share: Quantity

    def but(self, **changes: Any) -> Assumptions:
        """Return these with some replaced: by a number (no range, labelled as the caller's) or a `Quantity`.

        Raises
        ------
        BadInput
            For an assumption that does not exist.
        """
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in changes.items():
            if name not in known:
                raise BadInput(f"there is no assumption {name!r}: use one of {', '.join(known)}")
            if not isinstance(value, Quantity):
                changes[name] = Quantity(float(value), known[name].unit, frozenset({Evidence.ASSUMPTION}), "", "as asked", name)
        return replace(self, **changes)


DEFAULT = Assumptions(
    mfu=_assumed("mfu", 0.40, "1", "note 004 table 2: three values, unmeasured", 0.25, 0.50),
    kv_efficiency=_assumed(
        "kv_efficiency",
        0.42,
        "1",
        "one measurement on an H100 (2026-03): 42 %; DGX Spark 22 %; streaming copies 84 %",
        0.22,
        0.84,
    ),
    activations_bytes=_assumed("activations_bytes", 5e9, "B", "note 000 part 5; depends on batch and engine", 2e9, 10e9),
    placement=_assumed("placement", 0.0, "1", "no hit curve given: worst to best case", -1.0, 1.0),
    lookahead=_assumed("lookahead", 0.0, "1", "no prefetcher to a perfect one", 0.0, 1.0),
    in_flight=_assumed("in_flight", 32.0, "transfers", "queue depth of common offload engines", 1.0, 256.0),
    sink_tokens=_assumed("sink_tokens", 16.0, "tokens", "one block is enough in our recordings"),
    entry_bytes=_assumed("entry_bytes", 8.0, "B", "two float32 scores a unit"),
    block_tokens=_assumed("block_tokens", 16.0, "tokens", "note 004 paragraph 2; vLLM's default"),
    quantum_tokens=_assumed("quantum_tokens", 64.0, "tokens", "no measurement: a scheduler's choice", 16.0, 256.0),
    years=_assumed("years", 3.0, "years", "note 000 part 16"),
    busy_share=_assumed("busy_share", 1.0, "1", "always decoding; a real system idles", 0.2, 1.0),
)
