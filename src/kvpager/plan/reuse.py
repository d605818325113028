"""What tiers are worth on recorded requests, in seconds: each block fetched or computed again, beside computing everything.

Blocks are taken one after the other: no queues, no overlap of fetching with computing, no competition between requests. So the
sums compare policies and tiers; they are not the time to the first token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.analysis import recompute, transfer
from kvpager.analysis.reuse import reachable, worth_fetching
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity, combine, propagate, weakest
from kvpager.hardware import Accelerator, Medium
from kvpager.plan.assumptions import DEFAULT
from kvpager.plan.evaluate import as_json
from kvpager.plan.load import Load
from kvpager.replay.hierarchy import HierarchyReplay
from kvpager.replay.hierarchyrow import depths_and_tokens

__all__ = ["Again", "Recomputing", "block_fetch_s", "fetch_or_recompute", "medium_fetch_s"]

Array = NDArray[np.float64]
_ENDS = {"slow": 0, "fast": 1}


class Again(Protocol):
    """What computing blocks again takes; `Recomputing` is one, and so is whatever was measured."""

    @property
    def inputs(self) -> Sequence[Quantity]:
        """What the seconds are computed from."""
        ...

    def seconds(self, positions: Array, tokens: Array, end: str) -> Array:
        """Seconds for blocks of `tokens` behind `positions` cached ones; `end` of the inputs' ranges: value, slow or fast."""
        ...


@dataclass(frozen=True)
class Recomputing:
    """Blocks computed by an accelerator, by the planner's formula: `kvpager.analysis.recompute.recompute_s`.

    Parameters
    ----------
    load : Load
        The model, from `kvpager.plan.load.load_of`.
    accelerator : Accelerator
        From the catalogue.
    mfu, kv_efficiency : Quantity
        Shares of the peak and of the memory's rate that are reached.
    alone : bool
        Whether a block is a pass of its own, which reads all weights; else it joins a long one, and its cost is marginal.
    """

    load: Load
    accelerator: Accelerator
    mfu: Quantity = DEFAULT.mfu
    kv_efficiency: Quantity = DEFAULT.kv_efficiency
    alone: bool = False

    @property
    def inputs(self) -> Sequence[Quantity]:
        """What the seconds are computed from."""
        chip = self.accelerator
        rates = (chip.bf16_flops_per_s, self.mfu, chip.hbm_bytes_per_s, chip.hbm_efficiency, self.kv_efficiency)
        return (*rates, self.load.active_params, self.load.params, self.load.weight_bytes_per_param)

    def seconds(self, positions: Array, tokens: Array, end: str) -> Array:
        """Seconds for blocks of `tokens` behind `positions` cached ones; `end` of the inputs' ranges: value, slow or fast."""
        rates = [_at(quantity, end) for quantity in self.inputs[:5]]
        sizes = [_at(quantity, end, size=True) for quantity in self.inputs[5:]]
        peak, mfu, rate, good, kv_good = rates
        active, params, weight = sizes
        found = recompute.recompute_s(
            self.load.pass_flops(active, tokens, positions), peak, mfu, params * weight,
            positions * self.load.full_bytes_per_token, rate * good, rate * kv_good, not self.alone,
        )  # fmt: skip
        return np.asarray(found, np.float64)


def block_fetch_s(name: str, block_bytes: int, rate: Quantity, latency: Quantity | None = None) -> Quantity:
    """Seconds to fetch a block in one transfer, ``latency + bytes / rate``; no latency counts as none (mission row 46)."""
    parts = [rate] if latency is None else [rate, latency]
    return propagate(
        f"{name} fetch_s",
        "s",
        f"latency + {block_bytes:,} B / rate",
        lambda speed, t0=0.0: float(transfer.fetch_s(block_bytes, speed, 1.0, t0)),
        parts,
        source="mission row 46",
    )


def medium_fetch_s(medium: Medium, block_bytes: int) -> Quantity:
    """Seconds to fetch a block from one endpoint of a medium, at its rate for that size; for a path, see `block_fetch_s`."""
    return block_fetch_s(medium.name, block_bytes, medium.read_at(block_bytes), medium.latency_s)


def fetch_or_recompute(
    found: HierarchyReplay, fetch_s: Mapping[str, Quantity | float], again: Again, *, rule: str = "missing_only"
) -> dict[str, Any]:
    """Decide for each block that a tier holds whether it is fetched or computed again, and add the seconds up.

    Parameters
    ----------
    found : HierarchyReplay
        A replay of chained blocks.
    fetch_s : mapping of str to Quantity or float
        Seconds to fetch a block from each tier; 0 for the one that the accelerator computes from. A bare number is an
        assumption.
    again : Again
        What computing takes.
    rule : {"missing_only", "suffix"}
        See `kvpager.analysis.reuse`.

    Returns
    -------
    dict
        Ready for JSON. Blocks ``fetched``, ``declined`` (held, but faster to compute), ``out_of_reach`` (held behind a gap) and
        ``missing``, which are all accesses; their seconds, ``no_reuse_s`` if all were computed, and what is saved; with
        ``range``, least and most over the inputs' ranges, where they have any.

    Raises
    ------
    BadInput
        For ids that are not chained, a tier without a time, or an unknown rule.
    """
    trace, names = found.trace, [tier.name for tier in found.hierarchy.tiers]
    if not trace.chained:
        raise BadInput(
            f"{trace.name}: its block ids are not prefix-chained, so equal ids may hold other keys and values: "
            "number them by kvpager.replay.prefix.chained"
        )
    unknown = [name for name in names if name not in fetch_s]
    if unknown:
        raise BadInput(
            f"no time is given to fetch a block from tier {unknown[0]!r}: give seconds, 0 where it is in place already"
        )
    times = [_quantity(name, fetch_s[name]) for name in names]
    reach = reachable(found.served >= 0, trace.starts, rule)
    ends = {end: _outcome(found, times, again, rule, reach, end) for end in ("value", "slow", "fast")}
    labels = combine([Evidence.SIMULATED, Evidence.ANALYTICAL], *(part.labels for part in (*times, *again.inputs)))
    ranged = any(part.is_range for part in (*times, *again.inputs))
    keys = ("fetched_blocks", "declined_blocks", "no_reuse_s", "saved_s", "saved_share")
    return {
        "rule": rule,
        "assumed": _assumed(rule),
        **ends["value"],
        **({"range": {key: sorted(ends[end][key] for end in ("slow", "fast")) for key in keys}} if ranged else {}),
        "inputs": as_json([*times, *again.inputs]),
        "labels": [label.label for label in sorted(labels)],
        "evidence": weakest(labels).label,
    }


def _outcome(
    found: HierarchyReplay, times: Sequence[Quantity], again: Again, rule: str, reach: NDArray[np.bool_], end: str
) -> dict[str, Any]:
    """Counts and seconds at the inputs' values, or where fetching is slow and computing fast, or the other way round."""
    trace, below = found.trace, found.trace.starts[found.first]
    depths, tokens = depths_and_tokens(trace)
    opposite = {"slow": "fast", "fast": "slow"}.get(end, end)
    compute = _seconds(again, depths, tokens, trace.block_size, opposite)
    by_tier = np.array([_at(time, end, size=True) for time in times] + [np.inf])
    fetch = by_tier[found.served]
    chosen = worth_fetching(reach, np.where(reach, fetch, 0.0), compute, trace.starts, rule)[below:]
    served, fetch, compute, reach = found.served[below:], fetch[below:], compute[below:], reach[below:]
    held = served >= 0
    counts = {
        "fetched_blocks": chosen,
        "declined_blocks": reach & ~chosen,
        "out_of_reach_blocks": held & ~reach,
        "missing_blocks": ~held,
        "recomputed_blocks": ~chosen,
    }
    control, fetching, computing = float(compute.sum()), float(fetch[chosen].sum()), float(compute[~chosen].sum())
    saved = control - fetching - computing
    return {
        **{name: int(np.count_nonzero(flags)) for name, flags in counts.items()},
        "fetch_s": fetching,
        "recompute_s": computing,
        "total_s": fetching + computing,
        "no_reuse_s": control,
        "saved_s": saved,
        "saved_share": saved / control if control else 0.0,
        "always_fetch_s": float(fetch[reach].sum() + compute[~reach].sum()),
        "tiers": [
            {
                "name": tier.name,
                "block_fetch_s": float(by_tier[number]),
                "fetched_blocks": int(np.count_nonzero(chosen & (served == number))),
                "declined_blocks": int(np.count_nonzero(reach & ~chosen & (served == number))),
                "out_of_reach_blocks": int(np.count_nonzero(~reach & (served == number))),
                "fetch_s": float(fetch[chosen & (served == number)].sum()),
            }
            for number, tier in enumerate(found.hierarchy.tiers)
        ],
    }


def _seconds(again: Again, depths: NDArray[np.int64], tokens: NDArray[np.int64], block_size: int, end: str) -> Array:
    """Seconds of each access: full blocks by a table over their place, the partial ones each."""
    places = np.arange(int(depths.max()) + 1, dtype=np.float64) * block_size
    found = again.seconds(places, np.full(len(places), float(block_size)), end)[depths]
    partial = tokens < block_size
    found[partial] = again.seconds(places[depths[partial]], tokens[partial].astype(np.float64), end)
    return found


def _at(quantity: Quantity, end: str, *, size: bool = False) -> float:
    """One end of a range: the slow one is the lowest rate, and the largest size or time."""
    if end == "value":
        return quantity.value
    return quantity.ends[_ENDS[end] if not size else 1 - _ENDS[end]]


def _quantity(name: str, given: Quantity | float) -> Quantity:
    if not isinstance(given, Quantity):
        given = Quantity(float(given), "s", frozenset({Evidence.ASSUMPTION}), "", "as given", f"{name} fetch_s")
    if not given.ends[0] >= 0:
        raise BadInput(f"fetching a block from tier {name!r} cannot take {given.ends[0]} s: give 0 or more")
    return given


def _assumed(rule: str) -> list[str]:
    return [
        "missing_only: a pass may have holes, so each held block is fetched or computed by itself"
        if rule == "missing_only"
        else "suffix: one run from the beginning is fetched and all behind it computed; it ends where that takes least",
        "a block is fetched if that is at least as fast as computing it (the planner's rule)",
        "blocks one after the other: no queue, no overlap, nothing shared between requests; not a time to the first token",
        "a partial block is fetched whole, and computed for the tokens that it has",
        "what the tiers hold does not depend on the decision: a declined block moves as a fetched one does, without being read",
    ]
