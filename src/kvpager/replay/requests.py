"""What a cache of blocks would have hit on recorded requests: many policies at many sizes, each number with its meaning.

Two semantics, which answer two questions, and every row says which it is:

- ``block``: each access counts alone, as in simulators of object caches; all accesses of a request, one after the other.
- ``prefix``: a request looks its prompt up before anything changes, and only the leading run of hits is of use, as in
  serving engines.

In both, a request's leading run is also given in tokens, and whole requests are counted. Replays go on in threads, since
compiled loops hold no interpreter lock.

Misses have three causes. *Compulsory* ones are first accesses: an infinite cache has them too. *Capacity* misses are those that
the optimum of the same size and semantics has beyond these. *Policy* misses are the rest: what a better choice would have hit.
The optimum is `belady` by block, where every missed block is taken in, and `prefix-opt` by prefix, where it may be bypassed; both
have the most block hits of the whole trace. In the part of it that a warm-up leaves, and in tokens or whole requests, a policy
may have more: then headroom is below 0, and no miss is the policy's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.evidence import Evidence
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags, checked
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES
from kvpager.registry import configure
from kvpager.replay.prefix import check_chained, hit_tokens
from kvpager.traces.requests import RequestTrace

__all__ = [
    "OPTIMUM",
    "Case",
    "against_ceiling",
    "ceiling",
    "counted",
    "first_counted",
    "leading_runs",
    "ratios",
    "replay_requests",
]

OPTIMUM = {"block": "belady", "prefix": "prefix-opt"}
"""By semantics: the policy that no other has more block hits than."""

_PREFIX = "prefix-"


@dataclass(frozen=True)
class Case:
    """What to replay.

    Parameters
    ----------
    policy : str
        Written form, e.g. ``"s3fifo:threshold=1"``; in prefix semantics, which has policies of its own, ``"prefix-lru"``.
    capacity_blocks : int
        Blocks that the cache holds; 0 hits nothing, and more than there are distinct blocks is the infinite cache.
    """

    policy: str
    capacity_blocks: int

    @property
    def semantics(self) -> str:
        """What a hit is: ``"block"`` or ``"prefix"``, see the module."""
        return "prefix" if self.policy.startswith(_PREFIX) else "block"


def replay_requests(
    trace: RequestTrace,
    cases: Sequence[Case],
    *,
    warmup: float = 0.0,
    optimum: bool = True,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay all `cases`; rows come back in their order, ready for JSON.

    Parameters
    ----------
    trace : RequestTrace
        The requests; chained block ids are needed for prefix semantics.
    cases : sequence of Case
        What to replay; equal ones are replayed once.
    warmup : float
        Share of the requests that are replayed first and not counted, in [0, 1).
    optimum : bool
        Replay the optimum too, once for each size and semantics. Without it, rows do not name one: `misses` has ``other`` instead
        of ``capacity`` and ``policy``, and there is no ``headroom``.
    threads : int
        0 = one a core.
    progress : callable, optional
        Told how many replays are done, of how many.

    Returns
    -------
    list of dict
        Ratios over the counted requests: ``block_hit_ratio``, ``prefix_token_hit_ratio``, ``request_hit_ratio`` (whole
        prompts); ``misses`` by cause; ``ceiling``, the ratios that no size exceeds; ``optimum``, its name; ``headroom``, its
        ratios less the policy's.

    Raises
    ------
    BadInput, UnknownName
        For a case that cannot be replayed, before any is, or requests without blocks.
    """
    first = first_counted(trace, warmup)
    runs = {case: _runner(trace, case) for case in cases}
    best = [replace(case, policy=OPTIMUM[case.semantics]) for case in cases] if optimum else []
    runs |= {case: _runner(trace, case) for case in best}
    above = ceiling(trace, first)
    counts: dict[Case, dict[str, int]] = {}
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        found = pool.map(lambda run: counted(trace, run(), first), runs.values())
        for case, sums in zip(runs, found, strict=True):
            counts[case] = sums
            if progress is not None:
                progress(len(counts), len(runs))
    rows = [_row(case, counts[case], above, first) for case in cases]
    for row, case in zip(rows, best, strict=optimum):
        _compare(row, case.policy, counts[case])
    return rows


def first_counted(trace: RequestTrace, warmup: float) -> int:
    """Return the number of the first request that counts after a warm-up.

    Raises
    ------
    BadInput
        If none is left, or the requests have no blocks that a cache could hold.
    """
    if not 0 <= warmup < 1:
        raise BadInput(f"a warm-up of {warmup} of the requests leaves none to count: give a share from 0 to below 1")
    if not len(trace.blocks):
        raise BadInput("these requests have no blocks, so no cache can be replayed on them: give a trace with block ids")
    checked(trace.blocks, trace.distinct, 0)
    return int(warmup * len(trace))


def ceiling(trace: RequestTrace, first: int = 0) -> dict[str, int]:
    """Return what an infinite cache hits from request number `first` on.

    Returns
    -------
    dict of str to int
        ``accesses``, ``block_hits``, ``input_tokens``, ``prefix_hit_tokens``, ``requests``, ``whole_requests``.
    """
    hit = np.empty(len(trace.blocks), np.bool_)
    _again(trace.blocks, np.zeros(trace.distinct, np.bool_), hit)
    return counted(trace, hit, first)


def _runner(trace: RequestTrace, case: Case) -> Callable[[], Flags]:
    """What says which accesses of a case hit."""
    if case.capacity_blocks < 0:
        raise BadInput(f"a cache of {case.capacity_blocks} blocks is impossible: give 0 or more")
    capacity = min(case.capacity_blocks, trace.distinct)
    if case.semantics == "prefix":
        check_chained(trace)
        rule = configure(PREFIX_POLICIES, case.policy.removeprefix(_PREFIX))

        def lead() -> Flags:
            runs = np.zeros(len(trace), np.int32)
            if capacity:
                rule.replay(trace.blocks, trace.starts, trace.distinct, capacity, runs)
            counts = np.diff(trace.starts)
            flags: Flags = np.arange(len(trace.blocks)) < np.repeat(trace.starts[:-1] + runs, counts)
            return flags

        return lead
    policy = configure(REQUEST_POLICIES, case.policy)

    def run() -> Flags:
        hit = np.zeros(len(trace.blocks), np.bool_)
        if capacity:
            policy.replay(trace.blocks, trace.distinct, capacity, hit)
        return hit

    return run


def leading_runs(hit: Flags, starts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return how many hits each request begins with, int32 [requests]."""
    runs = np.empty(len(starts) - 1, np.int32)
    _lead(hit, starts, runs)
    return runs


def counted(trace: RequestTrace, hit: Flags, first: int) -> dict[str, int]:
    """Add up the flags of the requests from `first` on; keys are those of `ceiling`."""
    starts = trace.starts
    sizes, runs = np.diff(starts), leading_runs(hit, starts)
    tokens = hit_tokens(runs, starts, trace.input_tokens, trace.block_size)
    return {
        "accesses": int(starts[-1] - starts[first]),
        "block_hits": int(np.count_nonzero(hit[starts[first] :])),
        "input_tokens": int(trace.input_tokens[first:].sum()),
        "prefix_hit_tokens": int(tokens[first:].sum()),
        "requests": len(sizes) - first,
        "whole_requests": int(np.count_nonzero((runs == sizes)[first:])),
    }


def _row(case: Case, counts: dict[str, int], above: dict[str, int], first: int) -> dict[str, Any]:
    return {
        "policy": case.policy,
        "capacity_blocks": case.capacity_blocks,
        "semantics": case.semantics,
        "warmup_requests": first,
        **counts,
        **against_ceiling(counts, above),
        "evidence": Evidence.SIMULATED.label,
    }


def against_ceiling(counts: Mapping[str, int], above: Mapping[str, int]) -> dict[str, Any]:
    """Return the ratios of counts, misses by cause as far as an infinite cache tells them, and its ratios."""
    misses, compulsory = (one["accesses"] - one["block_hits"] for one in (counts, above))
    return {
        **ratios(counts),
        "misses": {"compulsory": compulsory, "other": misses - compulsory},
        "ceiling": ratios(above),
    }


def ratios(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the three ratios of counts such as `ceiling` gives, numbers or arrays."""
    return {
        "block_hit_ratio": counts["block_hits"] / max(counts["accesses"], 1),
        "prefix_token_hit_ratio": counts["prefix_hit_tokens"] / max(counts["input_tokens"], 1),
        "request_hit_ratio": counts["whole_requests"] / max(counts["requests"], 1),
    }


def _compare(row: dict[str, Any], optimum: str, best: dict[str, int]) -> None:
    """Say in a row what the optimum of its size has."""
    compulsory, other = row["misses"].values()
    capacity = min(best["accesses"] - best["block_hits"] - compulsory, other)
    row["misses"] = {"compulsory": compulsory, "capacity": capacity, "policy": other - capacity}
    row["optimum"] = optimum
    row["headroom"] = {name: ratio - row[name] for name, ratio in ratios(best).items()}


@numba.njit(nogil=True, cache=True)
def _again(blocks: Any, seen: Any, hit: Any) -> None:
    for at in range(len(blocks)):
        hit[at] = seen[blocks[at]]
        seen[blocks[at]] = True


@numba.njit(nogil=True, cache=True)
def _lead(hit: Any, starts: Any, runs: Any) -> None:
    for request in range(len(runs)):
        at = starts[request]
        while at < starts[request + 1] and hit[at]:
            at += 1
        runs[request] = at - starts[request]
