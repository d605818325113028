"""The LRU curve of a trace that is too long to replay whole: depths of a sample of its blocks, with the error that this makes.

Of the blocks, the hottest are all in the sample, as many as `rate` of all, and of the others, the *cold* ones, that share by a
hash of their ids. An access to a sampled block tells how deep it stood in an LRU stack (`SampledStack`). Hits of cold blocks are
scaled up such that an infinite cache has as many as there are, which is counted.

Hashing alone, as in SHARDS (Waldspurger et al., FAST 2015), is wrong for KV traces: one block may open every request, and whether
it is in the sample decides the curve. Two errors are left, and both are printed:

- *which* cold blocks were drawn: the spread of the curves that leave out one of 16 disjoint parts of the sample (jackknife);
- *how deep* an access is, which blurs the curve along its capacities. Whole prompts come back at one depth, so that the curve has
  steps, and averages do not help.

Printed is four times the first, and how much the curve changes within four standard errors of a depth. That is wide, because it
is meant for all capacities at once: of 100 samples of made-up and recorded traces, 94 or more had the true curve within it
everywhere. By prefix all is the same, because a hit depends on the block's own depth alone (`prefix_depths`). Tokens of leading
runs by block do not, and are not given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput, TraceError
from kvpager.replay.prefix import check_chained
from kvpager.replay.sampledstack import HOT, PARTS, SampledStack, bin_edges
from kvpager.traces.requests import RequestTrace
from kvpager.traces.room import check_room

__all__ = ["SAMPLE_ABOVE", "SampledCurve", "sampled_curve"]

SAMPLE_ABOVE: Final = 100_000_000
"""Accesses up to which a curve is counted exactly, unless asked otherwise."""

_SIZED_BLOCKS: Final = 1 << 20  # cold blocks in the sample, by default
_LEAST: Final = 8 * PARTS
_ERRORS: Final = 4.0  # standard errors that are printed, of both kinds

Floats = NDArray[np.float64]
Pieces = Callable[[], Iterable[RequestTrace]]


@dataclass(frozen=True, eq=False)
class SampledCurve:
    """Estimated hits of LRU caches of all sizes; `hits` and `hit_tokens` look them up.

    Parameters
    ----------
    semantics : str
        ``"block"`` or ``"prefix"``.
    first : int
        Number of the first request that counts.
    requests, accesses, tokens : int
        Of the requests that count, exactly.
    distinct : int
        Blocks of the whole trace.
    rate : float
        Share of the cold blocks that was drawn.
    seed : int
        Of the hash.
    hot_blocks, cold_blocks : int
        In the sample.
    found : float64 [2, parts + 1, bins]
        Hits, and their tokens, by depth, of each part of the cold blocks and of the hot ones.
    again : float64 [2]
        Accesses of cold blocks that an infinite cache hits, and their tokens, exactly.
    blur : float64 [bins]
        Standard error of a depth, in blocks.
    """

    semantics: str
    first: int
    requests: int
    accesses: int
    tokens: int
    distinct: int
    rate: float
    seed: int
    hot_blocks: int
    cold_blocks: int
    found: Floats
    again: Floats
    blur: Floats

    def hits(self, capacities: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return block hits at these capacities, and their error, float64 [capacities] each."""
        return self._at(capacities, 0)

    def hit_tokens(self, capacities: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return tokens of leading hits at these capacities, and their error.

        Raises
        ------
        BadInput
            By block: a leading run ends at its first miss, and a sample does not see all blocks of a request.
        """
        if self.semantics == "block":
            raise BadInput("a sample does not tell the leading hits of a cache by block: replay all, or sample by prefix")
        return self._at(capacities, 1)

    def _at(self, capacities: NDArray[np.int64], what: int) -> tuple[Floats, Floats]:
        curves = np.cumsum(self.found[what], axis=1)
        cold, hot = curves[:PARTS], curves[HOT]
        whole = cold.sum(0)
        every = self.again[what] / max(whole[-1], 1.0) * whole + hot
        without = whole - cold
        parts = self.again[what] / np.maximum(without[:, -1:], 1.0) * without + hot
        spread = np.sqrt((1 - self.rate) * ((PARTS - 1) * parts.var(0) + (self.again[what] / max(whole[-1], 1.0)) ** 2))
        ends = bin_edges()[1:] - 1  # the largest whole depth of each bin
        asked = np.asarray(capacities, np.float64)

        def at(curve: Floats, depths: Floats) -> Floats:
            return np.interp(depths, ends, curve, left=0.0)

        middle, width = at(every, asked), _ERRORS * np.interp(asked, ends, self.blur)
        blurred = np.maximum(at(every, asked + width) - middle, middle - at(every, asked - width))
        return middle, _ERRORS * at(spread, asked) + blurred


def sampled_curve(
    pieces: Pieces, *, semantics: str = "block", rate: float | None = None, warmup: float = 0.0, seed: int = 0
) -> SampledCurve:
    """Estimate the hits of LRU caches of all sizes from a sample of the blocks.

    Reads the trace twice, and holds two numbers for each distinct block.

    Parameters
    ----------
    pieces : callable
        Gives all pieces of the trace in order, anew each time, e.g. ``lambda: iter_requests(path)`` or ``lambda: [trace]``.
    semantics : {"block", "prefix"}
        As in `kvpager.replay.requests`.
    rate : float, optional
        Share of the blocks that are in the sample as the hottest, and share of the others that are drawn, in (0, 1); by default
        such that about a million are drawn, half of them at most.
    warmup : float
        Share of the requests that go first and are not counted, in [0, 1).
    seed : int
        Of the hash that draws.

    Raises
    ------
    BadInput
        For settings that mean nothing, ids that are not chained by prefix, or so few blocks that no error could be told.
    TraceError
        If the pieces are not the same the second time.
    CapacityError
        If the numbers of each block do not fit into memory.
    """
    if semantics not in ("block", "prefix"):
        raise BadInput(f"semantics {semantics!r} are unknown: choose block or prefix")
    if not 0 <= warmup < 1:
        raise BadInput(f"a warm-up of {warmup} of the requests leaves none to count: give a share from 0 to below 1")
    if rate is not None and not 0 < rate < 1:
        raise BadInput(f"a sample of {rate} of the blocks is impossible: give a share above 0 and below 1, or count all")
    counts, requests = _counted(pieces, semantics)
    distinct, first = len(counts), int(warmup * requests)
    share = min(0.5, _SIZED_BLOCKS / max(distinct, 1)) if rate is None else rate
    slots, part = _drawn(counts, share, seed)
    del counts
    hot = int(np.count_nonzero(part == HOT))
    if len(part) - hot < _LEAST:
        raise BadInput(
            f"a sample of {share:g} of {distinct} blocks has {len(part) - hot} cold ones, and its error needs {_LEAST}: "
            "raise the rate, or count all"
        )
    stack = SampledStack(slots, part, semantics == "prefix")
    before = 0
    for piece in pieces():
        stack.add(piece, max(0, min(first - before, len(piece))))
        before += len(piece)
    if (stack.known, before) != (distinct, requests):
        raise TraceError("the trace was another one the second time that it was read: give the same pieces each time")
    accesses, tokens = stack.counted[:2].tolist()
    return SampledCurve(
        semantics, first, requests - first, accesses, tokens, distinct, share, seed, hot, len(part) - hot,
        stack.found, stack.counted[2:].astype(np.float64), stack.blur(),
    )  # fmt: skip


def _counted(pieces: Pieces, semantics: str) -> tuple[NDArray[np.int32], int]:
    """Return how often each block is accessed, and the number of requests."""
    counts, requests, distinct = np.zeros(1 << 16, np.int32), 0, 0
    for piece in pieces():
        if semantics == "prefix":
            check_chained(piece)
        if piece.distinct > len(counts):
            check_room(4 * (3 * piece.distinct), f"counting the {piece.distinct} blocks of {piece.name}")
            counts = np.concatenate([counts, np.zeros(max(len(counts), piece.distinct - len(counts)), np.int32)])
        _count(piece.blocks, counts)
        requests, distinct = requests + len(piece), piece.distinct
    return counts[:distinct], requests


def _drawn(counts: NDArray[np.int32], rate: float, seed: int) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return each block's number in the sample, -1 for none, and each sampled block's part.

    Hot is what is accessed more often than any other, as long as these are `rate` of the blocks at most.
    """
    often = _histogram(counts)
    above = np.cumsum(often[::-1])[::-1]
    hottest = int(np.argmax(np.append(above, 0) <= rate * len(counts)))
    slots, part = np.empty(len(counts), np.int32), np.empty(len(counts), np.int8)
    sampled = _draw(counts, hottest, rate, seed, slots, part)
    return slots, part[:sampled].copy()


@numba.njit(nogil=True, cache=True)
def _count(blocks: Any, counts: Any) -> None:
    for at in range(len(blocks)):
        counts[blocks[at]] += 1


@numba.njit(nogil=True, cache=True)
def _histogram(counts: Any) -> Any:
    most = 1 << 20
    often = np.zeros(most + 1, np.int64)
    for block in range(len(counts)):
        often[min(counts[block], most)] += 1
    return often


@numba.njit(nogil=True, cache=True)
def _mixed(key: Any) -> Any:
    """Return 64 well mixed bits: the finaliser of splitmix64 (Steele et al., OOPSLA 2014)."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


@numba.njit(nogil=True, cache=True)
def _draw(counts: Any, hottest: Any, rate: Any, seed: Any, slots: Any, part: Any) -> Any:
    limit, salt, sampled = rate * 2.0**53, _mixed(np.uint64(seed)), 0
    for block in range(len(counts)):
        mixed = _mixed(np.uint64(block) * np.uint64(0x9E3779B97F4A7C15) + salt)
        hot = counts[block] >= hottest
        if not hot and np.float64(mixed >> np.uint64(11)) >= limit:
            slots[block] = -1
            continue
        slots[block] = sampled
        part[sampled] = HOT if hot else np.int8(mixed & np.uint64(PARTS - 1))
        sampled += 1
    return sampled
