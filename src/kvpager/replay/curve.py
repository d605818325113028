"""All that a chart or a table of hits against capacity needs: the LRU curve, other policies beside it, the optimum, the ceiling.

LRU is counted at every capacity in one pass, by block or by prefix, and told at the asked capacities and on a logarithmic grid;
of more than a hundred million accesses it is estimated from a sample, and every ratio has its error beside it. Other policies and
the optimum are replayed at the asked capacities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.evidence import Evidence
from kvpager.replay.distances import block_depths, hits_by_capacity, leading_depths, prefix_depths
from kvpager.replay.prefix import check_chained
from kvpager.replay.requests import OPTIMUM, Case, first_counted, ratios, replay_requests
from kvpager.replay.sampling import SAMPLE_ABOVE, SampledCurve, sampled_curve
from kvpager.traces.requests import RequestTrace

__all__ = ["MEANING", "curve", "curve_source"]

MEANING: Final[Mapping[str, str]] = {
    "block": "each access counts alone: an access hits if its block is in the cache, whatever stands before it",
    "prefix": "a request looks up all its blocks before any is taken in, and only the leading run of hits counts",
}
"""What each semantics counts."""

_POINTS: Final = 400
_SHARES: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
_KNEE: Final = 0.05

Integers = NDArray[np.int64]
Source = RequestTrace | Callable[[], Iterable[RequestTrace]]


def curve_source(path: str | Path) -> Source:
    """Return what `curve` takes for a file of ours: the trace, or, of one that it would sample, what gives its pieces.

    Raises
    ------
    TraceError, CapacityError
        As `read_requests`.
    """
    from kvpager.traces.requeststore import count_accesses, iter_requests, read_requests

    return read_requests(path) if count_accesses(path) <= SAMPLE_ABOVE else partial(iter_requests, path)


def curve(
    source: Source,
    policies: Sequence[str],
    capacities: Sequence[int],
    *,
    semantics: str = "prefix",
    warmup: float = 0.0,
    block_bytes: int = 0,
    sample: float | None = None,
    seed: int = 0,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Return hits against capacity as a document, ready for JSON.

    Parameters
    ----------
    source : RequestTrace or callable
        The trace; or what gives all its pieces anew each time, of one that does not fit into memory: then LRU alone is told.
    policies : sequence of str
        Beside LRU's curve, in written form; the optimum is replayed in any case.
    capacities : sequence of int
        Blocks, in any order: where policies are replayed, and LRU is told exactly.
    semantics : {"block", "prefix"}
        See `kvpager.replay.requests`.
    warmup : float
        Share of the requests that go first and are not counted, in [0, 1).
    block_bytes : int
        KV bytes of a block, if they are known: then capacities are told in bytes too.
    sample : float, optional
        Share of the blocks to sample; by default all are counted, up to `SAMPLE_ABOVE` accesses.
    seed : int
        Of the sample.
    threads : int
        0 = one a core.
    progress : callable, optional
        Told how many steps are done, of how many; LRU's curve is one.

    Returns
    -------
    dict
        ``trace``, ``semantics``, ``meaning``, ``warmup_requests``, ``distinct_blocks``; ``ceiling``, the ratios of an infinite
        cache; ``rows`` of `replay_requests`; ``evidence``; and ``lru``: its ``method``, ``points`` at the asked capacities and on
        a grid, about 400, and of one ``ratio`` the ``knees``, where the curve stands at least 5 points above a straight line
        over the doublings of capacity, and ``reach``, the least capacities that have a share of the ceiling. A sample has errors
        beside its ratios, and tells no whole requests.

    Raises
    ------
    BadInput, UnknownName
        For what `replay_requests` or `sampled_curve` refuse, or policies that a trace in pieces cannot be asked for.
    """
    asked = np.unique(np.array(capacities, np.int64))
    whole = source if isinstance(source, RequestTrace) else None
    _check(asked, semantics, {*policies} - {"lru"} if whole is None else set())
    names = [policy if semantics == "block" else f"prefix-{policy}" for policy in policies]
    cases = [Case(name, int(size)) for size in asked for name in dict.fromkeys([*names, OPTIMUM[semantics]])]
    steps = 1 + len(cases) if whole is not None else 1

    def tell(done: int, _: int = 0) -> None:
        if progress is not None:
            progress(done, steps)

    rows = replay_requests(whole, cases, warmup=warmup, threads=threads, progress=tell) if whole is not None else []
    lru: _Exact | _Sampled
    if whole is None or sample is not None or len(whole.blocks) > SAMPLE_ABOVE:
        lru = _Sampled(sampled_curve(_pieces(source), semantics=semantics, rate=sample, warmup=warmup, seed=seed))
    else:
        lru = _Exact(whole, semantics, first_counted(whole, warmup))
    tell(steps)
    document = {
        "trace": _told(next(iter(_pieces(source)())), lru.totals),
        "semantics": semantics,
        "meaning": MEANING[semantics],
        "warmup_requests": lru.first,
        **_lru(lru, asked, "prefix_token_hit_ratio" if semantics == "prefix" else "block_hit_ratio"),
        "rows": rows,
        "evidence": Evidence.SIMULATED.label,
    }
    if block_bytes:
        document["block_bytes"] = block_bytes
        for entry in [*document["lru"]["points"], *document["lru"]["knees"], *document["lru"]["reach"], *rows]:
            entry["capacity_bytes"] = entry["capacity_blocks"] * block_bytes
    return document


def _check(asked: Integers, semantics: str, impossible: set[str]) -> None:
    if len(asked) and asked[0] < 0:
        raise BadInput(f"a cache of {asked[0]} blocks is impossible: give 0 or more")
    if semantics not in MEANING:
        raise BadInput(f"semantics {semantics!r} are unknown: choose block or prefix")
    if impossible:
        raise BadInput(
            f"{', '.join(sorted(impossible))} cannot be replayed piece by piece: ask for lru alone, or give a trace that fits "
            "into memory"
        )


def _pieces(source: Source) -> Callable[[], Iterable[RequestTrace]]:
    return (lambda: [source]) if isinstance(source, RequestTrace) else source


class _Exact:
    """LRU caches of all sizes, counted.

    Parameters
    ----------
    trace : RequestTrace
        The whole.
    semantics : str
        ``"block"`` or ``"prefix"``.
    first : int
        Number of the first request that counts.
    """

    def __init__(self, trace: RequestTrace, semantics: str, first: int) -> None:
        if semantics == "prefix":
            check_chained(trace)
            depths = leading = prefix_depths(trace.blocks, trace.starts, trace.distinct)
        else:
            depths = block_depths(trace.blocks, trace.distinct)
            leading = leading_depths(depths, trace.starts)
        begin, counts = trace.starts[first], np.diff(trace.starts)[first:]
        last = leading[trace.starts[first + 1 :][counts > 0] - 1]
        lacking = np.maximum(trace.block_size * counts - trace.input_tokens[first:], 0)[counts > 0]
        self._hits, self._runs = hits_by_capacity(depths[begin:]), hits_by_capacity(leading[begin:])
        self._lacking, self._whole = hits_by_capacity(last, lacking), hits_by_capacity(last)
        self._block_size, self._empty = trace.block_size, int(np.count_nonzero(counts == 0))
        self.first, self.distinct = first, trace.distinct
        self.totals = {
            "requests": len(counts), "accesses": int(counts.sum()), "input_tokens": int(trace.input_tokens[first:].sum()),
        }  # fmt: skip
        self.method: dict[str, Any] = {"method": "counted at every capacity in one pass"}

    def at(self, capacities: Integers) -> dict[str, Any]:
        """Return ratios at these capacities, by name."""

        def of(curve: Integers) -> Integers:
            return curve[np.minimum(capacities, len(curve) - 1)]

        tokens = self._block_size * of(self._runs) - of(self._lacking)
        found = {"block_hits": of(self._hits), "prefix_hit_tokens": tokens, "whole_requests": of(self._whole) + self._empty}
        return ratios(self.totals | found)


class _Sampled:
    """LRU caches of all sizes, estimated.

    Parameters
    ----------
    found : SampledCurve
        The estimate.
    """

    def __init__(self, found: SampledCurve) -> None:
        self._found, self.first, self.distinct = found, found.first, found.distinct
        self.totals = {"requests": found.requests, "accesses": found.accesses, "input_tokens": found.tokens}
        self.method: dict[str, Any] = {
            "method": "estimated from a sample of the blocks",
            "sample": {
                "rate": found.rate, "seed": found.seed, "hot_blocks": found.hot_blocks, "cold_blocks": found.cold_blocks,
                "error": "four standard errors, meant to hold for the whole curve at once",
            },
        }  # fmt: skip

    def at(self, capacities: Integers) -> dict[str, Any]:
        """Return ratios at these capacities, and their errors, by name."""
        hits, error = self._found.hits(capacities)
        per = max(self._found.accesses, 1)
        told = {"block_hit_ratio": hits / per, "block_hit_ratio_error": error / per}
        if self._found.semantics == "prefix":
            tokens, error = self._found.hit_tokens(capacities)
            per = max(self._found.tokens, 1)
            told |= {"prefix_token_hit_ratio": tokens / per, "prefix_token_hit_ratio_error": error / per}
        return told


def _told(head: RequestTrace, totals: dict[str, int]) -> dict[str, Any]:
    """What a trace is, as JSON."""
    return {"source": dict(head.source), "block_size_tokens": head.block_size, "chained": head.chained, **totals}


def _lru(lru: _Exact | _Sampled, asked: Integers, ratio: str) -> dict[str, Any]:
    """Ceiling and curve; knees and reach are those of `ratio`."""
    grid = np.geomspace(1, lru.distinct, max(2, _POINTS - len(asked))).astype(np.int64)
    sizes = np.unique(np.concatenate([grid, asked]))
    points = _entries(lru, sizes)
    above = {name: value for name, value in _entries(lru, sizes[-1:])[0].items() if name.endswith("_ratio")}
    height = np.array([point[ratio] for point in points])[sizes > 0]
    knees = sizes[sizes > 0][_knees(np.log2(sizes[sizes > 0]), height)]
    reach = [
        {"share_of_ceiling": share, **_entries(lru, _least(lru, ratio, share * above[ratio]))[0]}
        for share in _SHARES
        if above[ratio] > 0
    ]
    return {
        "distinct_blocks": lru.distinct,
        "ceiling": above,
        "lru": {**lru.method, "ratio": ratio, "points": points, "knees": _entries(lru, knees), "reach": reach},
    }


def _entries(lru: _Exact | _Sampled, sizes: Integers) -> list[dict[str, Any]]:
    columns = {"capacity_blocks": sizes, **lru.at(sizes)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*(column.tolist() for column in columns.values()), strict=True)]


def _least(lru: _Exact | _Sampled, ratio: str, goal: float) -> Integers:
    """The least capacity of at least this ratio, [1], by bisection; the ratio does not fall."""
    low, high = 0, lru.distinct
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if lru.at(np.array([middle]))[ratio][0] >= goal else (middle + 1, high)
    return np.array([high])


def _knees(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Where a curve stands highest above the straight line between its ends, if by `_KNEE`; and so on on both sides of it."""
    if len(x) < 3:
        return []
    above = y - y[0] - (y[-1] - y[0]) / (x[-1] - x[0]) * (x - x[0])
    at = int(above.argmax())
    if above[at] < _KNEE:
        return []
    return [*_knees(x[: at + 1], y[: at + 1]), at, *(at + more for more in _knees(x[at:], y[at:]))]
