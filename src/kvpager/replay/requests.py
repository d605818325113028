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
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.evidence import Evidence
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags, checked
from kvpager.registry import configure
from kvpager.replay.prefix import PREFIX_RULES, hit_tokens

__all__ = ["Case", "Prompts", "ceiling", "replay_requests"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Prompts:
    """The part of a request trace that a cache sees.

    Parameters
    ----------
    blocks : int32 [n]
        Ids from 0 on, chained, request by request.
    starts : int64 [requests + 1]
        Where each request begins.
    input_tokens : int64 [requests]
        Lengths of the prompts.
    block_size : int
        Tokens of a block.
    distinct : int
        Above every id.
    """

    blocks: Ids
    starts: Ints
    input_tokens: Ints
    block_size: int
    distinct: int

    def __post_init__(self) -> None:
        """Check that there is something to replay."""
        if len(self.starts) < 2 or not len(self.blocks):
            raise BadInput("these requests have no blocks, so no cache can be replayed on them: give a trace with block ids")
        checked(self.blocks, self.distinct, 0)


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
    prompts: Prompts,
    cases: Sequence[Case],
    *,
    warmup: float = 0.0,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay all `cases`; rows come back in their order, ready for JSON.

    Parameters
    ----------
    prompts : Prompts
        The requests.
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
        For a case that cannot be replayed, before any is.
    """
    if not 0 <= warmup < 1:
        raise BadInput(f"a warm-up of {warmup} of the requests leaves none to count: give a share from 0 to below 1")
    runs = [_runner(case) for case in cases]
    first = int(warmup * (len(prompts.starts) - 1))
    above = ceiling(prompts, first)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        found = pool.map(lambda run: _counted(prompts, run(prompts), first), runs)
        for case, counts in zip(cases, found, strict=True):
            rows.append(_row(case, counts, above, first))
            if progress is not None:
                progress(len(rows), len(cases))
    return rows


def ceiling(prompts: Prompts, first: int = 0) -> dict[str, int]:
    """Return what an infinite cache hits from request number `first` on.

    Returns
    -------
    dict of str to int
        ``accesses``, ``hits``, ``tokens``, ``hit_tokens``, ``requests``, ``whole_requests``.
    """
    seen = np.zeros(len(prompts.blocks), np.bool_)
    seen[np.unique(prompts.blocks, return_index=True)[1]] = True
    return _counted(prompts, ~seen, first)


def _runner(case: Case) -> Callable[[Prompts], Flags]:
    """What says which accesses of a case hit."""
    if case.capacity_blocks < 0:
        raise BadInput(f"a cache of {case.capacity_blocks} blocks is impossible: give 0 or more")
    if case.semantics == "prefix":
        if case.policy not in PREFIX_RULES:
            raise BadInput(f"policy {case.policy!r} has no prefix semantics: choose among {', '.join(PREFIX_RULES)}")
        return lambda prompts: _leading(prompts, case)
    if case.semantics != "block":
        raise BadInput(f"semantics {case.semantics!r} are unknown: choose block or prefix")
    policy = configure(REQUEST_POLICIES, case.policy)

    def run(prompts: Prompts) -> Flags:
        hit = np.zeros(len(prompts.blocks), np.bool_)
        if case.capacity_blocks:
            policy.replay(prompts.blocks, prompts.distinct, min(case.capacity_blocks, prompts.distinct), hit)
        return hit

    return run


def _leading(prompts: Prompts, case: Case) -> Flags:
    runs = PREFIX_RULES[case.policy](prompts.blocks, prompts.starts, prompts.distinct, case.capacity_blocks)
    place = np.arange(len(prompts.blocks)) - np.repeat(prompts.starts[:-1], np.diff(prompts.starts))
    flags: Flags = place < np.repeat(runs, np.diff(prompts.starts))
    return flags


def _counted(prompts: Prompts, hit: Flags, first: int) -> dict[str, int]:
    """Add up the flags of the requests from `first` on."""
    starts = prompts.starts
    sizes = np.diff(starts)
    missed = np.concatenate([[0], np.cumsum(~hit)])
    # the leading run ends at the first miss: where the count of misses first exceeds that at the request's start
    stop = np.searchsorted(missed, missed[starts[:-1]], side="right") - 1
    runs = np.minimum(stop - starts[:-1], sizes).astype(np.int32)
    tokens = hit_tokens(runs, starts, prompts.input_tokens, prompts.block_size)
    return {
        "accesses": int(starts[-1] - starts[first]),
        "hits": int(np.count_nonzero(hit[starts[first] :])),
        "tokens": int(prompts.input_tokens[first:].sum()),
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
