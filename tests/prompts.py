"""Requests from lists of contents, and plain tiers for them."""

import numpy as np

from kvpager.replay.hierarchy import TierSpec
from kvpager.replay.prefix import chained
from kvpager.traces.requests import RequestTrace

NAMES = ("ann", "bob", "cy")


def prompts(contents, tenants=None, block_size=4, short=1):
    """Requests whose last block lacks `short` tokens; ids are chained."""
    n, starts = len(contents), np.cumsum([0, *map(len, contents)])
    nodes, _ = chained(np.array([block for one in contents for block in one], np.int32), starts, 100)
    none = np.full(n, -1, np.int64)
    return RequestTrace(
        np.arange(n) * 1.0, none, none, np.array([len(one) * block_size - short for one in contents]), np.zeros(n, np.int64),
        np.zeros(n, np.int32) if tenants is None else np.array(tenants, np.int32), starts, nodes, block_size, True,
        ("",) if tenants is None else NAMES,
    )  # fmt: skip


def tiers_of(*sizes, **options):
    return [TierSpec(f"tier {number}", size, **options) for number, size in enumerate(sizes)]
