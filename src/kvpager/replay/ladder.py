"""The notes' hit-ratio ladder on a recording: five rungs, all 16 subsets of its factors, and what else could be done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import factorial
from typing import Any

from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, load_stream, sweep

__all__ = ["FACTORS", "LADDER_SIZES", "NOTE_HBM_FRACTION", "REFERENCES", "RUNGS", "bounds_of", "ladder", "rung_case", "shapley"]

NOTE_HBM_FRACTION = 0.0684
"""47 GB of 687.2 GB: the notes' HBM for the KV of 16 users (claim ``hot-97-plausible``)."""

LADDER_SIZES = (0.054, NOTE_HBM_FRACTION, 0.10, 0.25)

FACTORS = ("sink", "ema", "per_head", "prefetch")

RUNGS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("lru", "LRU", ()),
    ("sink", "+ sink pin (100 tokens)", ("sink",)),
    ("ema", "+ EMA α 0.2", ("sink", "ema")),
    ("per_head", "+ per KV head", ("sink", "ema", "per_head")),
    ("prefetch", "+ RoPE/EMA prefetch", FACTORS),
)
"""Name, label and the factors that are on."""

REFERENCES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("random", {"policy": "random"}),
    ("LRU, unit head", {"policy": "lru"}),
    ("LFU", {"policy": "lfu"}),
    ("EMA, no pin", {"policy": "ema"}),
    ("EMA + one sink block", {"policy": "ema+sink:16"}),
    ("EMA + sink, max over heads", {"policy": "ema+sink", "granularity": "layer", "fold": "max"}),
    ("notes' placement score, raw", {"policy": "placement"}),
    ("notes' placement score, ranked", {"policy": "placement-rank"}),
    ("notes' cuts 0.3/0.6, raw", {"policy": "placement-cuts"}),
    ("blend (recommended)", {"policy": "blend"}),
    ("blend, one layer ahead prefetch", {"policy": "blend", "prefetcher": "previous"}),
    ("belady", {"policy": "belady"}),
)
"""What else is shown beside the rungs, with the settings that differ from a plain case."""


def rung_case(factors: Sequence[str], hbm_fraction: float, pool: str, *, seed: int = 0, bound: bool = True) -> Case:
    """Return the ladder's case with `factors` on: mission row 33.

    Off → on: *sink* no pin → positions below 100; *ema* LRU → EMA 0.2, persistent; *per_head* unit
    ``layer`` with the mean over KV heads → unit ``head``; *prefetch* none → the 0.6/0.4 blend, at most
    1 % of the pool a step.
    """
    return Case(
        ("ema" if "ema" in factors else "lru") + ("+sink:100" if "sink" in factors else ""),
        hbm_fraction,
        pool,
        prefetcher="blend" if "prefetch" in factors else None,
        granularity="head" if "per_head" in factors else "layer",
        bound=bound,
        seed=seed,
    )


def shapley(value: Mapping[frozenset[str], float]) -> dict[str, float]:
    """Share of each factor in the whole gain, averaged over all orders.

    Parameters
    ----------
    value : mapping of frozenset to float
        Block hit ratio of every subset of `FACTORS`.

    Returns
    -------
    dict
        One number a factor; they sum to ``value[all] - value[none]``.
    """
    n = len(FACTORS)
    shares = {}
    for factor in FACTORS:
        others = [other for other in FACTORS if other != factor]
        shares[factor] = sum(
            factorial(k) * factorial(n - 1 - k) / factorial(n) * (value[frozenset({*subset, factor})] - value[frozenset(subset)])
            for k in range(n)
            for subset in combinations(others, k)
        )
    return shares


def ladder(
    source: Source,
    *,
    hbm_fraction: float = NOTE_HBM_FRACTION,
    sizes: Sequence[float] = LADDER_SIZES,
    pools: Sequence[str] = ("global", "equal"),
    subsets: bool = False,
    seed: int = 0,
    jobs: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Replay the ladder.

    Parameters
    ----------
    source : Source
        The recording and how it is read.
    hbm_fraction : float
        The size in front; the others of `sizes` go under ``others``.
    sizes : sequence of float
        HBM as a share of all KV; those too small for this recording's open units are left out.
    pools : sequence of str
        The first is in front.
    subsets : bool
        Also all 16 subsets, their Shapley shares and leave-one-out, at `hbm_fraction`.
    seed : int
        Of the ties.
    jobs : int
        Processes; 0 = one a core.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    dict
        ``hbm_fraction``, ``pool``, ``rungs``, ``others``, ``references`` and, if asked, ``subsets``.
    """
    fitting = [size for size in sizes if size * load_stream(source).recording.blocks >= 2]
    places = [(size, pool) for pool in pools for size in sorted({hbm_fraction, *fitting})]
    cases = [rung_case(factors, size, pool, seed=seed) for size, pool in places for _, _, factors in RUNGS]
    front = [(hbm_fraction, pool) for pool in pools]
    cases += [Case(hbm_fraction=size, pool=pool, seed=seed, **changes) for size, pool in front for _, changes in REFERENCES]
    groups = [frozenset(group) for k in range(len(FACTORS) + 1) for group in combinations(FACTORS, k)] if subsets else []
    cases += [rung_case(tuple(group), size, pool, seed=seed, bound=False) for size, pool in front for group in groups]
    rows = iter(sweep(source, cases, jobs=jobs, progress=progress))
    rungs = {place: [{"name": name, "label": label} | next(rows) for name, label, _ in RUNGS] for place in places}
    references = [{"label": label} | next(rows) for _ in front for label, _ in REFERENCES]
    document: dict[str, Any] = {
        "hbm_fraction": hbm_fraction,
        "pool": pools[0],
        "rungs": rungs[hbm_fraction, pools[0]],
        "others": [
            {"hbm_fraction": size, "pool": pool, "rungs": rungs[size, pool]}
            for size, pool in places
            if (size, pool) != (hbm_fraction, pools[0])
        ],
        "references": references,
    }
    if subsets:
        document["subsets"] = [
            _subsets(hbm_fraction, pool, {group: next(rows)["block_hit_ratio"] for group in groups}) for pool in pools
        ]
    return document


def _subsets(hbm_fraction: float, pool: str, value: Mapping[frozenset[str], float]) -> dict[str, Any]:
    everything = frozenset(FACTORS)
    return {
        "hbm_fraction": hbm_fraction,
        "pool": pool,
        "rows": [{"factors": [f for f in FACTORS if f in group], "block_hit_ratio": ratio} for group, ratio in value.items()],
        "shapley": shapley(value),
        "leave_one_out": {factor: value[everything] - value[everything - {factor}] for factor in FACTORS},
    }


def bounds_of(ladder: Mapping[str, Any]) -> dict[str, float]:
    """Return the dense bound, and the largest bound among the rungs without prefetch, of what `ladder` returned."""
    plain = [row for row in ladder["rungs"] if "prefetch" not in row]
    return {"dense": plain[0]["dense_bound"], "belady": max(row["bound"] for row in plain)}
