"""The request trace in memory: who asked when, with how many tokens, and which blocks the prompt is made of.

Columns of numpy arrays, never one object per request. A block id stands for `block_size` tokens of a prompt; equal ids are
equal contents. A trace larger than memory comes as pieces: each is a `RequestTrace` that says where in the whole it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import TraceError
from kvpager.traces.room import check_room

__all__ = ["COLUMNS", "RequestTrace", "checked", "gather"]

Ints = NDArray[np.int64]

COLUMNS: Mapping[str, type[np.generic]] = {
    "time_s": np.float64,
    "session": np.int64,
    "parent": np.int64,
    "input_tokens": np.int64,
    "output_tokens": np.int64,
    "tenant": np.int32,
}
"""Columns with one value a request, and their types."""


@dataclass(frozen=True, eq=False)
class RequestTrace:
    """Requests in the order of their arrival, or one piece of them.

    Parameters
    ----------
    time_s : float64 [n]
        Arrival in seconds, never going backwards.
    session, parent : int64 [n]
        Number of its conversation, and row in the whole trace of the request that it continues; -1 for none.
    input_tokens, output_tokens : int64 [n]
        Tokens of the prompt, at least 1, and of the answer.
    tenant : int32 [n]
        Index into `tenants`.
    starts : int64 [n + 1]
        Where each request's blocks begin in `blocks`; its blocks end where the next one's begin.
    blocks : int32 [total]
        Ids 0, 1, 2, … by first appearance. Of n tokens a request lists either every block, the last perhaps partial
        (ceil(n / block_size)), or its full blocks only (floor); each format says which.
    block_size : int
        Tokens of a block; 0 in a trace that tells lengths but no blocks.
    chained : bool
        Whether an id stands for its block and for all before it, so that it always follows the same block.
    tenants : tuple of str
        Their names.
    source : mapping
        Where the trace comes from, as JSON: format, file, settings, lines that were skipped.
    first_row, first_block : int
        Of a piece: requests, and distinct blocks, in the pieces before it.
    """

    time_s: NDArray[np.float64]
    session: Ints
    parent: Ints
    input_tokens: Ints
    output_tokens: Ints
    tenant: Ids
    starts: Ints
    blocks: Ids
    block_size: int
    chained: bool
    tenants: tuple[str, ...] = ("",)
    source: Mapping[str, Any] = field(default_factory=dict)
    first_row: int = 0
    first_block: int = 0

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def distinct(self) -> int:
        """Distinct blocks up to the end of this piece."""
        return max(self.first_block, int(self.blocks.max(initial=-1)) + 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(getattr(self, name).nbytes for name in (*COLUMNS, "starts", "blocks"))

    @property
    def name(self) -> str:
        """What messages call it: its file, if it has one."""
        file = self.source.get("file")
        return f"request trace {file!r}" if file else "request trace"

    def check(self) -> None:
        """Raise `TraceError`, naming trace, row and remedy, unless all that the class says of its fields is so.

        Of a piece, `chained` is checked for the blocks that appear in it first.
        """
        self._check_shapes()
        self._check_requests()
        self._check_counts()
        self._check_blocks()

    def _check_shapes(self) -> None:
        n = len(self.time_s)
        if not n:
            raise TraceError(f"{self.name} holds no request: give one that has at least one")
        shapes = dict.fromkeys(COLUMNS, (n,)) | {"starts": (n + 1,), "blocks": (len(self.blocks),)}
        for name, shape in shapes.items():
            array, dtype = getattr(self, name), np.dtype(COLUMNS.get(name, np.int32 if name == "blocks" else np.int64))
            if array.shape != shape or array.dtype != dtype:
                raise TraceError(
                    f"{self.name}: {name!r} is {array.dtype}{list(array.shape)}, "
                    f"and {dtype}{list(shape)} is needed: make all columns from the same requests"
                )
        if self.starts[0] or self.starts[-1] != len(self.blocks) or (np.diff(self.starts) < 0).any():
            raise TraceError(f"{self.name}: 'starts' must rise from 0 to the {len(self.blocks)} entries of 'blocks'")

    def _check_requests(self) -> None:
        rows = np.arange(self.first_row, self.first_row + len(self))
        self._refuse(~np.isfinite(self.time_s), "its time is not a finite number: give seconds")
        self._refuse(
            np.diff(self.time_s, prepend=self.time_s[0]) < 0, "its time lies before that of the row above: sort requests by time"
        )
        self._refuse(self.session < -1, "its session is below -1: -1 says that it has none")
        self._refuse((self.parent < -1) | (self.parent >= rows), "its parent is not an earlier row: -1 says that it has none")
        self._refuse(self.input_tokens < 1, "it has no input token: leave it out")
        self._refuse(self.output_tokens < 0, "it has less than 0 output tokens: 0 says that none is known")
        named = f"its tenant is none of the {len(self.tenants)} that have a name: name them all"
        self._refuse((self.tenant < 0) | (self.tenant >= len(self.tenants)), named)

    def _check_counts(self) -> None:
        if self.block_size < 0 or (self.block_size == 0 and len(self.blocks)):
            raise TraceError(f"{self.name} has blocks, but a block size of {self.block_size} tokens: say how many a block has")
        if self.block_size:
            counts, full = np.diff(self.starts), self.input_tokens // self.block_size
            partial = (self.input_tokens % self.block_size > 0).astype(np.int64)
            self._refuse(
                (counts < full) | (counts > full + partial),
                f"its blocks of {self.block_size} tokens are neither floor nor ceiling of its length: give the right block size",
            )

    def _check_blocks(self) -> None:
        """Ids appear in the order of their numbers; if they are chained, each follows the same one always."""
        if not len(self.blocks):
            return
        where = np.flatnonzero(self.blocks >= self.first_block)
        fresh = self.blocks[where] - np.int32(self.first_block)
        appears = np.full(min(self.distinct - self.first_block, len(where) + 1), -1)
        if len(appears) <= len(where):
            appears[fresh[::-1]] = where[::-1]  # of several the last one written stays: the first access
        if self.blocks.min() < 0 or (np.diff(appears, prepend=-1) <= 0).any():
            known = np.maximum.accumulate(np.concatenate([np.array([self.first_block - 1], np.int32), self.blocks[:-1]]))
            row = self._row_of(int(((self.blocks < 0) | (self.blocks > known + 1)).argmax()))
            raise TraceError(
                f"{self.name}, row {row}: block ids must be 0, 1, 2, … by first appearance: pass them through intern"
            )
        if self.chained:
            before = np.concatenate([np.array([-1], np.int32), self.blocks[:-1]])
            before[self.starts[:-1][np.diff(self.starts) > 0]] = -1
            wrong = before[where] != before[appears][fresh]
            if wrong.any():
                at = int(where[wrong.argmax()])
                follows = f"block {before[at]}" if before[at] >= 0 else "nothing"
                raise TraceError(
                    f"{self.name}, row {self._row_of(at)}: block {self.blocks[at]} follows {follows}, and did not before: "
                    "these ids are not prefix-chained, say chained=False"
                )

    def _row_of(self, access: int) -> int:
        return self.first_row + int(np.searchsorted(self.starts, access, side="right")) - 1

    def _refuse(self, wrong: NDArray[np.bool_], why: str) -> None:
        if wrong.any():
            raise TraceError(f"{self.name}, row {self.first_row + int(wrong.argmax())}: {why}")


def checked(pieces: Iterable[RequestTrace], what: str = "the request trace") -> Iterator[RequestTrace]:
    """Pass pieces on, each once it is found right in itself and as a continuation of the one before.

    Parameters
    ----------
    pieces : iterable of RequestTrace
        All of them, in order.
    what : str
        What messages call a trace without pieces.

    Raises
    ------
    TraceError
        At the first piece that is wrong, or if there is none.
    """
    before: RequestTrace | None = None
    for piece in pieces:
        piece.check()
        row, block = (before.first_row + len(before), before.distinct) if before else (0, 0)
        if (piece.first_row, piece.first_block) != (row, block):
            raise TraceError(
                f"{piece.name}: a piece begins at row {piece.first_row}, block {piece.first_block}, where row {row}, "
                f"block {block} goes on: give every piece once, in order"
            )
        if before:
            if piece.time_s[0] < before.time_s[-1]:
                raise TraceError(f"{piece.name}, row {row}: its time lies before that of the row above: sort requests by time")
            if (piece.block_size, piece.chained) != (before.block_size, before.chained):
                raise TraceError(f"{piece.name}, row {row}: block size or chaining change here: all pieces must agree")
        yield piece
        before = piece
    if before is None:
        raise TraceError(f"{what} holds no request: give a trace that has at least one")


def gather(pieces: Iterable[RequestTrace], what: str = "the request trace") -> RequestTrace:
    """Put the pieces of a trace together in memory.

    Parameters
    ----------
    pieces : iterable of RequestTrace
        All of them, in order; the last one's `source` and `tenants` are those of the whole.
    what : str
        What messages call it.

    Returns
    -------
    RequestTrace
        The whole, checked.

    Raises
    ------
    TraceError
        If a piece is wrong, or there is none.
    CapacityError
        If the whole would not fit into the free memory; nothing is swapped out.
    """
    parts: list[RequestTrace] = []
    taken_bytes = 0
    for piece in checked(pieces, what):
        parts.append(piece)
        taken_bytes += piece.nbytes
        check_room(taken_bytes, what)  # as much again to put them together
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (*COLUMNS, "blocks")}
    counts = np.concatenate([np.array([0], np.int64), *(np.diff(part.starts) for part in parts)])
    return replace(parts[-1], **columns, starts=np.cumsum(counts), first_row=0, first_block=0)
