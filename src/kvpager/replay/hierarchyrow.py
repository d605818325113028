"""The row of a replay over tiers, ready for JSON: who served what, what was read and written, and what it all means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.evidence import Evidence
from kvpager.replay.hierarchy import HierarchyReplay
from kvpager.replay.hierarchyloop import DEMOTED, EVICTED, MOVED_UP, NEW, PROMOTED, READ
from kvpager.replay.requests import against_ceiling, ceiling, counted, leading_runs
from kvpager.traces.requests import RequestTrace

__all__ = ["depths_and_tokens", "row"]

Ints = NDArray[np.int64]


def row(found: HierarchyReplay) -> dict[str, Any]:
    """Return the counts of the requests after the warm-up.

    Parameters
    ----------
    found : HierarchyReplay
        From `kvpager.replay.hierarchy.replay_hierarchy`.

    Returns
    -------
    dict
        Counts, ratios and ceiling as of `kvpager.replay.requests.replay_requests`, over all tiers; ``recomputed_blocks``, what
        no tier served; ``tiers``, each with hits, tokens of leading runs, blocks read, written by reason and evicted, and in
        bytes if a block has any; ``tenants``, if there are several; the definitions in words.
    """
    trace, hierarchy, first = found.trace, found.hierarchy, found.first
    counts = counted(trace, found.served >= 0, first)
    below = trace.starts[first]
    served, tokens = found.served[below:].astype(np.int64), _leading_tokens(found)[below:]
    hits, hit_tokens = _by_tier(served, len(hierarchy.tiers)), _by_tier(served, len(hierarchy.tiers), tokens)
    return {
        "mode": hierarchy.mode,
        "write_policy": hierarchy.written,
        "semantics": hierarchy.semantics,
        "tenants_share_blocks": not hierarchy.separated,
        "assumed": _assumed(found),
        "block_size_tokens": trace.block_size,
        "block_bytes": found.block_bytes,
        "warmup_requests": first,
        **counts,
        **against_ceiling(counts, ceiling(trace, first)),
        "recomputed_blocks": counts["accesses"] - counts["block_hits"],
        "tiers": [_tier(found, tier, int(hits[tier]), int(hit_tokens[tier]), counts) for tier in range(len(hits))],
        "tenants": _tenants(found, served, tokens) if len(trace.tenants) > 1 else [],
        "evidence": Evidence.SIMULATED.label,
    }


def depths_and_tokens(trace: RequestTrace) -> tuple[Ints, Ints]:
    """Return each access's place in its prompt, in blocks, and the tokens that it holds there, int64 [accesses]."""
    sizes = np.diff(trace.starts)
    depths = np.arange(len(trace.blocks)) - np.repeat(trace.starts[:-1], sizes)
    tokens: Ints = np.minimum(np.repeat(trace.input_tokens, sizes) - depths * trace.block_size, trace.block_size)
    return depths, tokens


def _leading_tokens(found: HierarchyReplay) -> Ints:
    """Tokens of each access in its request's leading run, 0 behind it."""
    depths, tokens = depths_and_tokens(found.trace)
    runs = leading_runs(found.served >= 0, found.trace.starts)
    leading: Ints = np.where(depths < np.repeat(runs, np.diff(found.trace.starts)), tokens, 0)
    return leading


def _by_tier(served: Ints, tiers: int, weights: Ints | None = None) -> Ints:
    """Accesses, or sums of weights, by the tier that serves them; those that none does are left out."""
    sums: Ints = np.bincount(served + 1, weights, tiers + 1)[1:].astype(np.int64)
    return sums


def _tier(found: HierarchyReplay, number: int, hits: int, hit_tokens: int, counts: dict[str, int]) -> dict[str, Any]:
    tier, table = found.hierarchy.tiers[number], found.counts[number]
    read = int(table[READ])
    written = {name: int(table[column]) for name, column in (("new", NEW), ("demoted", DEMOTED), ("promoted", PROMOTED))}
    size = found.block_bytes
    in_bytes = {"read_bytes": read * size, "written_bytes": {why: n * size for why, n in written.items()}} if size else {}
    return {
        "name": tier.name,
        "policy": tier.policy,
        "capacity_blocks": found.sizes[number],
        "promote": tier.promote,
        "quota_blocks": dict(found.quotas[number]),
        "block_hits": hits,
        "block_hit_ratio": hits / max(counts["accesses"], 1),
        "prefix_hit_tokens": hit_tokens,
        "prefix_token_hit_ratio": hit_tokens / max(counts["input_tokens"], 1),
        "read_blocks": read,
        "written_blocks": written,
        **in_bytes,
        "evicted_blocks": int(table[EVICTED]),
        "moved_up_blocks": int(table[MOVED_UP]),
        "held_blocks": int(found.held[number]),
    }


def _tenants(found: HierarchyReplay, served: Ints, tokens: Ints) -> list[dict[str, Any]]:
    trace, first = found.trace, found.first
    requests = trace.tenant[first:]
    asked = np.repeat(requests, np.diff(trace.starts[first:]))
    rows = []
    for number, name in enumerate(trace.tenants):
        mine = asked == number
        hits, hit_tokens = int(np.count_nonzero(served[mine] >= 0)), int(tokens[mine].sum())
        accesses, prompt_tokens = int(np.count_nonzero(mine)), int(trace.input_tokens[first:][requests == number].sum())
        by_tier = _by_tier(served[mine], len(found.hierarchy.tiers)).tolist()
        rows.append(
            {
                "name": name,
                "requests": int(np.count_nonzero(requests == number)),
                "accesses": accesses,
                "block_hits": hits,
                "hits_by_tier": dict(zip((tier.name for tier in found.hierarchy.tiers), by_tier, strict=True)),
                "block_hit_ratio": hits / max(accesses, 1),
                "input_tokens": prompt_tokens,
                "prefix_hit_tokens": hit_tokens,
                "prefix_token_hit_ratio": hit_tokens / max(prompt_tokens, 1),
            }
        )
    return rows


def _assumed(found: HierarchyReplay) -> list[str]:
    hierarchy = found.hierarchy
    said = [
        "requests come one after the other: nothing is in flight, a write is done at once, and time plays no part",
        "what the answers add is not cached; a partial block takes the room of a whole one",
        "exclusive: a block stands in one tier; pushed out, it goes to the next; promoted, it leaves the tier below"
        if hierarchy.mode == "exclusive"
        else "inclusive: the last tier keeps copies and hears of every access; the tiers above hold a block in one of them",
        {
            "through": "a new block is written to the last tier at once, and again only if that has dropped it meanwhile",
            "demotion": "a block is written to the last tier only when the tiers above push it out, unless it is there",
            "second-hit": "a block is written to the last tier only if it was asked for twice so far; every id is remembered",
        }[hierarchy.written],
        "prefix: a prompt is looked up before anything changes; its leading run hits; its beginning is the most recent after"
        if hierarchy.semantics == "prefix"
        else "block: each access is looked up and carried out by itself, a prompt's beginning first",
    ]
    if hierarchy.separated:
        said.append("equal contents of two tenants are two blocks")
    if any(found.quotas):
        said.append("a quota is a part of the tier with an order of its own, used by its tenant only; the others share the rest")
    return said
