"""Token ranges whose attention mass a recording keeps beside its blocks: one definition for writer, fake and tests.

Every one of them is a contiguous range of tokens, so a prefix sum at its ends is all that it costs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.traces.recording import ABSOLUTE_EDGES, RELATIVE_BINS, SPECIALS

__all__ = ["RANGES", "SPLITS", "locality_ranges"]

SPLITS = (len(SPECIALS), len(SPECIALS) + RELATIVE_BINS)
"""Where an array of all ranges divides into special, relative and absolute."""

RANGES = len(SPECIALS) + RELATIVE_BINS + len(ABSOLUTE_EDGES)
"""Number of ranges."""


def locality_ranges(tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first token of each range and the one after its last.

    Parameters
    ----------
    tokens : int
        Tokens attended to, the newest (distance 0) included.

    Returns
    -------
    start, stop : int64 [RANGES]
        `SPECIALS`, then `RELATIVE_BINS` from old to new (token i is in bin ``20 i // tokens``), then the
        distance bins of `ABSOLUTE_EDGES`. Clipped to the tokens that exist; an empty range has ``start == stop``.
    """
    special = [(0, 1), (0, 4), (0, 100), (tokens - 200, tokens), (tokens - max(1, tokens // 10), tokens)]
    cuts = -(-np.arange(RELATIVE_BINS + 1) * tokens // RELATIVE_BINS)
    edges = np.array([*ABSOLUTE_EDGES, np.iinfo(np.int32).max])
    start = np.concatenate([[first for first, _ in special], cuts[:-1], tokens - edges[1:]])
    stop = np.concatenate([[after for _, after in special], cuts[1:], tokens - edges[:-1]])
    return np.clip(start, 0, tokens), np.clip(stop, 0, tokens)
