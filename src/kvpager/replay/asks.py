"""Replays of requests as people write them: sizes of a cache, and tiers with their quotas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvpager.errors import BadInput
from kvpager.replay.hierarchy import TierSpec
from kvpager.traces.requests import RequestTrace
from kvpager.units import is_number, parse_bytes, parse_share

__all__ = ["blocks_of", "describe_requests", "tiers_of"]

_QUOTA = re.compile(r"(?P<tier>[^/=]+)/(?P<tenant>[^=]+)=(?P<size>.+)")


def blocks_of(text: str, distinct: int, block_bytes: int | None) -> int:
    """Read a size of a cache: blocks (500), a share of the distinct blocks (10%), or bytes (8GiB) of blocks that have any.

    Raises
    ------
    BadInput
        If it is none of these, or in bytes where a block's are not known.
    """
    text = text.strip()
    if text.isdigit():
        return int(text)
    if text.endswith("%") or is_number(text):
        return int(parse_share(text, whole_bytes=max(distinct, 1)) * distinct + 1e-9)
    size = parse_bytes(text)
    if block_bytes is None:
        raise BadInput(f"size {text!r} is in bytes, and a block has none: give --model, or a share of the distinct blocks (10%)")
    return size // block_bytes


def tiers_of(text: str, quotas: Sequence[str], distinct: int, block_bytes: int | None) -> list[TierSpec]:
    """Read tiers, fastest first: ``hbm=10GiB,dram=30%,nvme``, the last perhaps unbounded; quotas: ``nvme/ann=30%``.

    Raises
    ------
    BadInput
        If one has no name, or a size that is none, or a quota is for a tier that there is not.
    """
    parts = [part.partition("=") for part in text.split(",")]
    if any(not name.strip() for name, _, _ in parts):
        raise BadInput(f"tiers {text!r}: each needs a name, as in hbm=10GiB,dram=30%,nvme")
    shares: dict[str, dict[str, float]] = {}
    blocks: dict[str, dict[str, int]] = {}
    for quota in quotas:
        found = _QUOTA.fullmatch(quota)
        if found is None or found["tier"] not in {name.strip() for name, _, _ in parts}:
            raise BadInput(f"quota {quota!r} is not TIER/TENANT=SIZE for one of the tiers {text!r}: write nvme/ann=30%")
        if found["size"].endswith("%"):
            shares.setdefault(found["tier"], {})[found["tenant"]] = parse_share(found["size"])
        else:
            blocks.setdefault(found["tier"], {})[found["tenant"]] = blocks_of(found["size"], distinct, block_bytes)
    return [
        TierSpec(
            name.strip(), blocks_of(size, distinct, block_bytes) if sized else None,
            quota_blocks=blocks.get(name.strip(), {}), quota_shares=shares.get(name.strip(), {}),
        )
        for name, sized, size in parts
    ]  # fmt: skip


def describe_requests(trace: RequestTrace, path: str) -> dict[str, Any]:
    """Return what a request trace is, for a document's ``trace``."""
    return {
        "path": path,
        "requests": len(trace),
        "sessions": len({*trace.session.tolist()} - {-1}),
        "tenants": len(trace.tenants),
        "accesses": len(trace.blocks),
        "distinct_blocks": trace.distinct,
        "block_size": trace.block_size,
        "chained": trace.chained,
        "input_tokens": int(trace.input_tokens.sum()),
        "output_tokens": int(trace.output_tokens.sum()),
        "seconds": float(trace.time_s[-1] - trace.time_s[0]),
        "source": dict(trace.source),
    }
