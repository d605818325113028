"""Sessions of coding agents, one a line, their requests nested for sub-agents, block ids as ranges and local to a session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kvpager.errors import BadInput, TraceError
from kvpager.traces.formats.base import FORMATS, Format
from kvpager.traces.lines import Lines, json_object, number, whole_number
from kvpager.traces.pieces import Request, check_blocks
from kvpager.traces.requests import RequestTrace

__all__ = ["Agentic"]

_DEEPEST = 32

Session = tuple[int, list[Request]]
"""Block size, and requests by time within the session; `parent` is an index into them."""


@FORMATS.register("agentic")
@dataclass(frozen=True)
class Agentic(Format):
    """Agent sessions, range-coded: `t` (s), `in`, `out`, `hash_ranges` of full blocks; a sub-agent's times follow its start.

    Blocks are shared within a session only. `parent` is the request before, of the same agent. The file does not say when a
    session began: `view` and `start` decide, and `source` repeats them.
    Source: callanjfox/kv-cache-tester, traces/, with `hash_ids` written as ranges.

    Parameters
    ----------
    view : str
        ``"sessions"``: one after the other, each beginning when the last one ended; ``"interleaved"``: all by time.
    start : str
        When interleaved, ``"together"``: all sessions begin at 0; ``"poisson"``: at random, in the file's order.
    mean_gap_s : float
        Mean seconds between the starts of two sessions.
    seed : int
        Of the starts.
    """

    view: str = "sessions"
    start: str = "together"
    mean_gap_s: float = 60.0
    seed: int = 0
    name: ClassVar[str] = "agentic"
    chained: ClassVar[bool] = True
    rounding: ClassVar[str] = "floor"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return b'"hash_ranges"' in head

    def pieces(self, path: Path, *, skip_bad: int = 0) -> Iterator[RequestTrace]:  # docstring inherited
        if self.view not in ("sessions", "interleaved") or self.start not in ("together", "poisson") or self.mean_gap_s < 0:
            raise BadInput(
                f"agentic: view {self.view!r}, start {self.start!r}, mean_gap_s {self.mean_gap_s}: "
                "choose sessions or interleaved, together or poisson, and at least 0"
            )
        lines = Lines(path, skip_bad)
        builder = self.builder(lines)
        rows: dict[tuple[int, int], int] = {}
        sessions = enumerate(lines.parsed(_session))
        ordered = self._in_sequence(sessions) if self.view == "sessions" else self._by_time(sessions)
        for time_s, place, block_size, request in ordered:
            if builder.row and block_size != builder.block_size:
                raise TraceError(f"{str(path)!r}: blocks of {builder.block_size} and {block_size} tokens; convert them apart")
            builder.block_size = block_size
            parent = rows[place[0], request.parent] if request.parent >= 0 else -1
            rows[place] = builder.row
            ids = request.ids + np.uint64(place[0] << 32)
            yield from builder.add(request._replace(time_s=time_s, session=place[0], parent=parent, ids=ids))
        yield from builder.rest()

    def settings(self) -> dict[str, Any]:  # docstring inherited
        if self.view == "sessions":
            return {"view": self.view, "start": "each when the last one ended: the file does not say"}
        return super().settings()

    @staticmethod
    def _in_sequence(sessions: Iterable[tuple[int, Session]]) -> Iterator[tuple[float, tuple[int, int], int, Request]]:
        begin = 0.0
        for order, (block_size, requests) in sessions:
            for index, request in enumerate(requests):
                yield begin + request.time_s, (order, index), block_size, request
            begin += requests[-1].time_s

    def _by_time(self, sessions: Iterable[tuple[int, Session]]) -> Iterator[tuple[float, tuple[int, int], int, Request]]:
        rng, begin, found = np.random.default_rng(self.seed), 0.0, []
        for order, (block_size, requests) in sessions:
            found += [(begin + request.time_s, (order, index), block_size, request) for index, request in enumerate(requests)]
            begin += rng.exponential(self.mean_gap_s) if self.start == "poisson" else 0.0
        yield from sorted(found, key=lambda entry: entry[:2])


def _session(line: bytes) -> Session:
    record = json_object(line)
    block_size = whole_number(record, "block_size", 1)
    found = sorted(_requests(record, 0.0, ()), key=lambda entry: entry[0].time_s)
    if not found:
        raise TraceError("expected 'requests', with at least one request")
    for request, _, _ in found:
        check_blocks(request, block_size, Agentic.rounding)
    index = {place: row for row, (_, place, _) in enumerate(found)}
    return block_size, [request._replace(parent=index.get(before, -1)) for request, _, before in found]


Place = tuple[int, ...]


def _requests(record: Mapping[str, Any], begin_s: float, place: Place) -> Iterator[tuple[Request, Place, Place]]:
    """Yield each request with its own place in the nest and that of the one before it, of the same agent."""
    requests = record.get("requests")
    if not isinstance(requests, list) or not all(isinstance(part, dict) for part in requests):
        raise TraceError("expected 'requests', a list of objects")
    if len(place) > _DEEPEST:
        raise TraceError(f"expected sub-agents within sub-agents {_DEEPEST} deep at most")
    before: Place = ()
    for index, part in enumerate(requests):
        time_s, here = begin_s + number(part, "t"), (*place, index)
        if not begin_s <= time_s < np.inf:
            raise TraceError(f"expected 't', seconds since the start of the agent, not {part['t']}")
        if "requests" in part:
            yield from _requests(part, time_s, here)
            continue
        yield Request(time_s, whole_number(part, "in", 1), whole_number(part, "out", 0), _ranges(part)), here, before
        before = here


def _ranges(record: Mapping[str, Any]) -> Any:
    ranges = record.get("hash_ranges")
    try:
        pairs = np.array(ranges, np.int64).reshape(-1, 2)
        if not isinstance(ranges, list) or (pairs[:, 0] > pairs[:, 1]).any() or (pairs < 0).any() or (pairs >= 2**32).any():
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        raise TraceError("expected 'hash_ranges', a list of [first, last] with 0 <= first <= last < 2^32") from None
    return pairs.astype(np.uint64)
