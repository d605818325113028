"""A replay of requests, and curves of hits, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvpager.report.document import Document, percent
from kvpager.report.plain import listed, table, wrapped
from kvpager.units import format_bytes, format_duration

__all__ = ["about", "print_replay"]

_MEANINGS = {
    "block": "by block: each access counts alone, as in simulators of object caches",
    "prefix": "by prefix: a prompt is looked up before anything changes, and only its leading run of blocks hits",
}


def print_replay(document: Document) -> list[str]:
    """Return the lines of a replay of requests: of one cache at several sizes, or of tiers.

    Parameters
    ----------
    document : Document
        As ``kvpager replay --json`` prints it for a request trace.
    """
    lines = [about(document["trace"])]
    if "hierarchy" in document:
        return [*lines, *_tiers(document["hierarchy"]), *_seconds(document.get("seconds")), *_wear(document.get("wear"))]
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    lines += table(
        "What a cache of that size would have hit",
        ("policy", "capacity\nblocks", "block\nhits", "prefix\ntokens", "whole\nprompts", "misses:\nfirst", "capacity", "policy"),
        "<>>>>>>>",
        [
            (
                row["policy"], f"{row['capacity_blocks']:,}",
                *(percent(row[f"{name}_hit_ratio"]) for name in ("block", "prefix_token", "request")),
                *(_share(row["misses"].get(name), row["accesses"]) for name in ("compulsory", "capacity", "policy")),
            )
            for row in rows
        ],
    )  # fmt: skip
    top = rows[0]["ceiling"]
    lines += [
        "",
        f"An infinite cache: {percent(top['block_hit_ratio'])} of blocks, {percent(top['prefix_token_hit_ratio'])} of tokens.",
    ]
    meanings = [_MEANINGS[name] for name in dict.fromkeys(row["semantics"] for row in rows)]
    warm = rows[0]["warmup_requests"]
    notes = [
        *meanings,
        f"the first {warm:,} requests warm up and do not count" if warm else "all requests count, from an empty cache",
    ]
    return lines + listed(f"What the numbers mean ({rows[0]['evidence']})", notes)


def about(trace: Mapping[str, Any]) -> str:
    """Say in one line what a request trace is."""
    return (
        f"{trace['path']}: {trace['requests']:,} requests, {trace['accesses']:,} blocks of {trace['block_size']} tokens, "
        f"{trace['distinct_blocks']:,} distinct"
    )


def _share(count: int | None, of: int) -> str:
    return "–" if count is None else percent(count / max(of, 1))


def _tiers(found: Mapping[str, Any]) -> list[str]:
    sized = found["block_bytes"] is not None

    def amount(blocks: int | None) -> str:
        if blocks is None:
            return "no limit"
        return format_bytes(blocks * found["block_bytes"]) if sized else f"{blocks:,}"

    rows = [
        (
            tier["name"], amount(tier["capacity_blocks"]),
            *(percent(tier[f"{name}_hit_ratio"]) for name in ("block", "prefix_token")), amount(tier["read_blocks"]),
            *(amount(tier["written_blocks"][why]) for why in ("new", "demoted", "promoted")),
        )
        for tier in found["tiers"]
    ]  # fmt: skip
    rows.append(("together", "", percent(found["block_hit_ratio"]), percent(found["prefix_token_hit_ratio"]), "", "", "", ""))
    above = found["ceiling"]
    rows.append(("infinite", "", *(percent(above[f"{name}_hit_ratio"]) for name in ("block", "prefix_token")), "", "", "", ""))
    lines = table(
        f"Tiers, {found['mode']}, {found['semantics']} semantics" + ("" if sized else ", in blocks"),
        ("tier", "capacity", "block\nhits", "prefix\ntokens", "read", "written:\nnew", "demoted", "promoted"),
        "<>>>>>>>",
        rows,
    )
    for tenant in found["tenants"]:
        lines += wrapped(
            f"tenant {tenant['name']!r}: {percent(tenant['block_hit_ratio'])} of {tenant['accesses']:,} blocks, "
            f"{percent(tenant['prefix_token_hit_ratio'])} of tokens"
        )
    return lines + listed(f"Assumed ({found['evidence']})", found["assumed"])


def _seconds(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    return [
        "",
        *wrapped(
            f"Fetch or recompute: {found['fetched_blocks']:,} blocks fetched, {found['declined_blocks']:,} declined (held, but "
            f"faster to compute), {found['missing_blocks']:,} missing. {format_duration(found['total_s'])} in all against "
            f"{format_duration(found['no_reuse_s'])} without any reuse: {percent(found['saved_share'])} saved "
            f"({found['evidence']})."
        ),
        *listed("Assumed", found["assumed"]),
    ]


def _wear(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    life = found.get("years_to_endurance")
    years = "" if life is None else " never worn out" if life == "never" else f", worn out after {life['value']:.3g} years"
    return [
        "",
        *wrapped(
            f"Wear of {found['tier']} ({found['drives']} x {found['medium']}): {format_bytes(found['written_bytes'])} written in "
            f"{format_duration(found['trace_s'])}, {found['drive_writes_per_day']['value']:.3g} drive writes a day{years} "
            f"({found['evidence']})."
        ),
    ]
