"""Which held blocks are worth fetching: the planner's rule, fetch or compute again, on every access of a request trace.

Two readings of "compute again", as in `kvpager.analysis.recompute`:

- *missing_only*: a pass may have holes, so each held block is fetched if that is at least as fast as computing it, whatever
  happens to those before it;
- *suffix*: what is fetched must be one run from a prompt's beginning, and all behind it is computed: today's engines. The run
  ends where the whole prompt is ready first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.analysis.recompute import cheaper_to_fetch
from kvpager.errors import BadInput
from kvpager.replay.requests import leading_runs

__all__ = ["RULES", "reachable", "worth_fetching"]

Flags = NDArray[np.bool_]
Seconds = NDArray[np.float64]

RULES = ("missing_only", "suffix")


def reachable(held: Flags, starts: NDArray[np.int64], rule: str) -> Flags:
    """Return which held blocks can be of use: all, or by ``suffix`` those of each request's leading run.

    Parameters
    ----------
    held : bool [accesses]
        Whether some tier holds the block.
    starts : int64 [requests + 1]
        Where each request begins.
    rule : {"missing_only", "suffix"}
        See the module.

    Returns
    -------
    bool [accesses]

    Raises
    ------
    BadInput
        For an unknown rule.
    """
    if rule not in RULES:
        raise BadInput(f"rule {rule!r} for computing blocks again is unknown: choose {' or '.join(RULES)}")
    if rule == "missing_only":
        return held
    sizes = np.diff(starts)
    depths = np.arange(len(held)) - np.repeat(starts[:-1], sizes)
    leading: Flags = depths < np.repeat(leading_runs(held, starts), sizes)
    return leading


def worth_fetching(reach: Flags, fetch_s: Seconds, again_s: Seconds, starts: NDArray[np.int64], rule: str) -> Flags:
    """Return which blocks to fetch; all others are computed again. Ties go to fetching.

    Parameters
    ----------
    reach : bool [accesses]
        From `reachable`, by the same rule.
    fetch_s, again_s : float64 [accesses]
        Seconds to fetch each block from where it stands, and to compute it behind all before it.
    starts : int64 [requests + 1]
        Where each request begins.
    rule : {"missing_only", "suffix"}
        See the module.

    Returns
    -------
    bool [accesses]

    Notes
    -----
    Fetching blocks 0 to k - 1 and computing the rest takes ``sum(fetch[:k]) + sum(again[k:])``, which is least where the
    running sum of ``again - fetch`` is largest.
    """
    if rule == "missing_only":
        fetched: Flags = np.logical_and(reach, cheaper_to_fetch(fetch_s, again_s))
        return fetched
    sizes = np.diff(starts)
    some = sizes > 0
    gains = np.concatenate([[0.0], np.cumsum(np.where(reach, again_s - fetch_s, 0.0))])
    gained = np.where(reach, gains[1:] - np.repeat(gains[starts[:-1]], sizes), -np.inf)
    first = starts[:-1][some]
    best = np.maximum(np.maximum.reduceat(gained, first), 0.0)
    at_best = np.where(gained >= np.repeat(best, sizes[some]), np.arange(1, len(reach) + 1), 0)
    stop = np.repeat(np.maximum.reduceat(at_best, first), sizes[some])
    chosen: Flags = np.arange(len(reach)) < stop
    return chosen
