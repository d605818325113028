"""What a cache of blocks would have hit on recorded requests: many policies at many sizes, each number with its meaning.

Two semantics, which answer two questions, and every row says which it is:

- ``block``: each access counts alone, as in simulators of object caches; all accesses of a request, one after the other.
- ``prefix``: a request looks its prompt up before anything changes, and only the leading run of hits is of use, as in
  serving engines.

In both, a request's leading run is also given in tokens, and whole requests are counted. Replays go on in threads, since
compiled loops hold no interpreter lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvpager.errors import BadInput
from kvpager.evidence import Evidence
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags, checked
from kvpager.registry import configure
from kvpager.replay.prefix import PREFIX_RULES, hit_tokens
from kvpager.traces.requests import RequestTrace

__all__ = ["Case", "ceiling", "replay_requests"]


@dataclass(frozen=True)
class Case:
    """What to replay.

    Parameters
    ----------
    policy : str
        Written form, e.g. ``"s3-fifo:threshold=1"``; in prefix semantics ``lru``, ``fifo`` or ``optimal``.
    capacity_blocks : int
        Blocks that the cache holds; 0 hits nothing, and more than there are distinct blocks is the infinite cache.
    semantics : {"block", "prefix"}
        See the module.
    """

    policy: str
    capacity_blocks: int
    semantics: str = "block"


def replay_requests(
    trace: RequestTrace,
    cases: Sequence[Case],
    *,
    warmup: float = 0.0,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay all `cases`; rows come back in their order, ready for JSON.

    Parameters
    ----------
    trace : RequestTrace
        The requests, with chained block ids.
    cases : sequence of Case
        What to replay.
    warmup : float
        Share of the requests that are replayed first and not counted, in [0, 1).
    threads : int
        0 = one a core.
    progress : callable, optional
        Told how many cases are done, of how many.

    Returns
    -------
    list of dict
        Ratios over the counted requests: ``block_hit_ratio``, ``prefix_token_hit_ratio``, ``request_hit_ratio`` (whole
        prompts), misses by cause, and the ceilings that no size exceeds.

    Raises
    ------
    BadInput, UnknownName
        For a case that cannot be replayed, before any is, or requests without blocks.
    """
    if not 0 <= warmup < 1:
        raise BadInput(f"a warm-up of {warmup} of the requests leaves none to count: give a share from 0 to below 1")
    if not len(trace.blocks):
        raise BadInput("these requests have no blocks, so no cache can be replayed on them: give a trace with block ids")
    checked(trace.blocks, trace.distinct, 0)
    runs = [_runner(case) for case in cases]
    first = int(warmup * (len(trace.starts) - 1))
    above = ceiling(trace, first)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        found = pool.map(lambda run: _counted(trace, run(trace), first), runs)
        for case, counts in zip(cases, found, strict=True):
            rows.append(_row(case, counts, above, first))
            if progress is not None:
                progress(len(rows), len(cases))
    return rows


def ceiling(trace: RequestTrace, first: int = 0) -> dict[str, int]:
    """Return what an infinite cache hits from request number `first` on.

    Returns
    -------
    dict of str to int
        ``accesses``, ``hits``, ``tokens``, ``hit_tokens``, ``requests``, ``whole_requests``.
    """
    seen = np.zeros(len(trace.blocks), np.bool_)
    seen[np.unique(trace.blocks, return_index=True)[1]] = True
    return _counted(trace, ~seen, first)


def _runner(case: Case) -> Callable[[RequestTrace], Flags]:
    """What says which accesses of a case hit."""
    if case.capacity_blocks < 0:
        raise BadInput(f"a cache of {case.capacity_blocks} blocks is impossible: give 0 or more")
    if case.semantics == "prefix":
        if case.policy not in PREFIX_RULES:
            raise BadInput(f"policy {case.policy!r} has no prefix semantics: choose among {', '.join(PREFIX_RULES)}")
        return lambda trace: _leading(trace, case)
    if case.semantics != "block":
        raise BadInput(f"semantics {case.semantics!r} are unknown: choose block or prefix")
    policy = configure(REQUEST_POLICIES, case.policy)

    def run(trace: RequestTrace) -> Flags:
        hit = np.zeros(len(trace.blocks), np.bool_)
        if case.capacity_blocks:
            policy.replay(trace.blocks, trace.distinct, min(case.capacity_blocks, trace.distinct), hit)
        return hit

    return run


def _leading(trace: RequestTrace, case: Case) -> Flags:
    runs = PREFIX_RULES[case.policy](trace.blocks, trace.starts, trace.distinct, case.capacity_blocks)
    place = np.arange(len(trace.blocks)) - np.repeat(trace.starts[:-1], np.diff(trace.starts))
    flags: Flags = place < np.repeat(runs, np.diff(trace.starts))
    return flags


def _counted(trace: RequestTrace, hit: Flags, first: int) -> dict[str, int]:
    """Add up the flags of the requests from `first` on."""
    starts = trace.starts
    sizes = np.diff(starts)
    missed = np.concatenate([[0], np.cumsum(~hit)])
    # the leading run ends at the first miss: where the count of misses first exceeds that at the request's start
    stop = np.searchsorted(missed, missed[starts[:-1]], side="right") - 1
    runs = np.minimum(stop - starts[:-1], sizes).astype(np.int32)
    tokens = hit_tokens(runs, starts, trace.input_tokens, trace.block_size)
    return {
        "accesses": int(starts[-1] - starts[first]),
        "hits": int(np.count_nonzero(hit[starts[first] :])),
        "tokens": int(trace.input_tokens[first:].sum()),
        "hit_tokens": int(tokens[first:].sum()),
        "requests": len(sizes) - first,
        "whole_requests": int(np.count_nonzero((runs == sizes)[first:])),
    }


def _row(case: Case, counts: dict[str, int], above: dict[str, int], first: int) -> dict[str, Any]:
    compulsory = above["accesses"] - above["hits"]
    return {
        "policy": case.policy,
        "capacity_blocks": case.capacity_blocks,
        "semantics": case.semantics,
        "warmup_requests": first,
        **counts,
        "block_hit_ratio": counts["hits"] / max(counts["accesses"], 1),
        "prefix_token_hit_ratio": counts["hit_tokens"] / max(counts["tokens"], 1),
        "request_hit_ratio": counts["whole_requests"] / max(counts["requests"], 1),
        "misses": {"compulsory": compulsory, "other": counts["accesses"] - counts["hits"] - compulsory},
        "ceiling": {
            "block_hit_ratio": above["hits"] / max(above["accesses"], 1),
            "prefix_token_hit_ratio": above["hit_tokens"] / max(above["tokens"], 1),
            "request_hit_ratio": above["whole_requests"] / max(above["requests"], 1),
        },
        "evidence": Evidence.SIMULATED.label,
    }
