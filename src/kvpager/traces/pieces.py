"""Requests, as a foreign file tells them one by one, packed into pieces of a request trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import TraceError
from kvpager.traces.requests import COLUMNS, RequestTrace
from kvpager.traces.room import check_room

__all__ = ["PIECE_BLOCKS", "PIECE_ROWS", "PieceBuilder", "Request", "check_blocks"]

PIECE_BLOCKS: Final = 1 << 20
"""Most block ids of a piece, unless one request has more."""
PIECE_ROWS: Final = 1 << 16
"""Most requests of a piece."""


class Request(NamedTuple):
    """One request; `ids` are its blocks' ids of any value, uint64 [blocks], or (first, last) ranges of them, uint64 [n, 2]."""

    time_s: float
    input_tokens: int
    output_tokens: int
    ids: NDArray[np.uint64]
    session: int = -1
    parent: int = -1
    tenant: str = ""


class PieceBuilder:
    """Takes requests one by one and gives pieces of about a million block ids, their blocks and tenants numbered.

    Parameters
    ----------
    rounding : str
        Which blocks a request lists: ``"ceil"`` all, the last perhaps partial; ``"floor"`` full ones; ``"either"``; ``"none"``.
    chained : bool
        Whether ids are prefix-chained.
    source : callable
        Gives a piece's `source` when it is made.
    block_size : int
        Tokens of a block; 0 until the first request says, or for ever where there are no blocks.
    """

    def __init__(self, rounding: str, *, chained: bool, source: Callable[[], Mapping[str, Any]], block_size: int = 0) -> None:
        from kvpager.traces.interning import Interner  # numba

        self._rounding, self._chained, self._source = rounding, chained, source
        self._interner = Interner()
        self._tenants: dict[str, int] = {}
        self._sessions: dict[str, tuple[int, int]] = {}
        self._pending: list[Request] = []
        self._pending_blocks = self._first_row = 0
        self.block_size = block_size
        self.time_s = -math.inf

    @property
    def row(self) -> int:
        """Row of the next request."""
        return self._first_row + len(self._pending)

    def turn(self, session: str) -> tuple[int, int]:
        """Make the next request the next of a session; return the session's number and its last row, -1 if it is new."""
        order, last = self._sessions.get(session, (len(self._sessions), -1))
        self._sessions[session] = order, self.row
        return order, last

    def fitting(self, request: Request, block_size: int) -> Request:
        """Return a request as it is, if it can come next.

        Raises
        ------
        TraceError
            What was expected, if its time goes backwards, its block size changes, or its blocks contradict its length.
        """
        if not (math.isfinite(request.time_s) and request.time_s >= self.time_s):
            raise TraceError(f"expected a time that does not go backwards, not {request.time_s:g} s after {self.time_s:g} s")
        if self.row and block_size != self.block_size:
            raise TraceError(f"expected blocks of {self.block_size} tokens, as in the lines above, not of {block_size}")
        if block_size:
            check_blocks(request, block_size, self._rounding)
        self.block_size = block_size
        return request

    def add(self, request: Request) -> Iterator[RequestTrace]:
        """Take a request; yield the piece before it, if that is full."""
        blocks = _blocks_of(request.ids)
        if self._pending and (len(self._pending) == PIECE_ROWS or self._pending_blocks + blocks > PIECE_BLOCKS):
            yield self._piece()
        self._pending.append(request)
        self._pending_blocks += blocks
        self.time_s = request.time_s

    def rest(self) -> Iterator[RequestTrace]:
        """Yield the last piece, if there is any."""
        if self._pending:
            yield self._piece()

    def _piece(self) -> RequestTrace:
        if self._pending_blocks > PIECE_BLOCKS:
            check_room(32 * self._pending_blocks, f"the request in row {self._first_row}")
        known = self._interner.distinct
        columns = dict(zip(Request._fields, zip(*self._pending, strict=True), strict=True))
        columns["tenant"] = tuple(self._tenants.setdefault(name, len(self._tenants)) for name in columns["tenant"])
        piece = RequestTrace(
            **{name: np.array(columns[name], dtype) for name, dtype in COLUMNS.items()},
            starts=np.cumsum([0, *map(_blocks_of, columns["ids"])]), blocks=self._interner.add(_expanded(columns["ids"])),
            block_size=self.block_size, chained=self._chained, tenants=tuple(self._tenants),
            source=dict(self._source()), first_row=self._first_row, first_block=known,
        )  # fmt: skip
        self._first_row, self._pending, self._pending_blocks = self.row, [], 0
        return piece


def check_blocks(request: Request, block_size: int, rounding: str) -> None:
    """Raise `TraceError`, saying what was expected, unless a request has as many blocks as its length asks for."""
    full, left = divmod(request.input_tokens, block_size)
    ceiling, count = full + (left > 0), _blocks_of(request.ids)
    if count not in {"ceil": (ceiling,), "floor": (full,), "either": (full, ceiling)}[rounding]:
        expected = full if rounding == "floor" else ceiling
        raise TraceError(f"expected {expected} blocks of {block_size} tokens for a length of {request.input_tokens}, not {count}")


def _blocks_of(ids: NDArray[np.uint64]) -> int:
    return len(ids) if ids.ndim == 1 else int((ids[:, 1] - ids[:, 0]).sum()) + len(ids)


def _expanded(parts: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the ids of many requests, one after the other; all of them have ids, or all have ranges."""
    ids = np.concatenate(parts)
    if ids.ndim == 1:
        return ids
    first, lengths = ids[:, 0], ids[:, 1] - ids[:, 0] + np.uint64(1)
    ends = np.cumsum(lengths)
    return np.repeat(first - (ends - lengths), lengths.astype(np.int64)) + np.arange(lengths.sum(), dtype=np.uint64)
