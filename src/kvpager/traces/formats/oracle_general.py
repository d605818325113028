"""libCacheSim's oracleGeneral, one access a record of 24 bytes: read, and written so that anyone can check us with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput, TraceError
from kvpager.traces.formats.base import FORMATS, Format
from kvpager.traces.lines import Lines
from kvpager.traces.pieces import PIECE_BLOCKS
from kvpager.traces.requests import RequestTrace

__all__ = ["RECORD", "OracleGeneral", "write_oracle_general"]

RECORD = np.dtype([("time_s", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])
"""Seconds, object, its bytes, and which record, counted from 1, accesses it next; -1 for none."""


@FORMATS.register("oracle-general")
@dataclass(frozen=True)
class OracleGeneral(Format):
    """oracleGeneral records: each access becomes a request of one block; sizes are ignored, blocks have all the same.

    Records of size 0, which libCacheSim leaves out, are malformed. What is compressed must be decompressed before.
    Source: libCacheSim, FAQ 1 ("how to read OracleGeneral trace").

    Parameters
    ----------
    block_size : int
        Tokens of a block, which such a file does not know.
    """

    block_size: int = 16
    name: ClassVar[str] = "oracle-general"
    chained: ClassVar[bool] = False
    rounding: ClassVar[str] = "floor"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return "oraclegeneral" in name.lower()

    def pieces(self, path: Path, *, skip_bad: int = 0) -> Iterator[RequestTrace]:  # docstring inherited
        from kvpager.traces.interning import Interner  # numba

        if self.block_size < 1:
            raise BadInput(f"oracle-general: block_size is {self.block_size}: give at least 1 token")
        lines, interner, row, last_s = Lines(path, skip_bad), Interner(), 0, 0.0
        for first, records in _chunks(path):
            good, last_s = _good(lines, first, records, last_s)
            if not len(good):
                continue
            known = interner.distinct
            told = {"format": self.name, "file": path.name, "rounding": self.rounding, "sizes": "ignored"}
            yield RequestTrace(
                time_s=good["time_s"].astype(np.float64), session=np.full(len(good), -1), parent=np.full(len(good), -1),
                input_tokens=np.full(len(good), self.block_size), output_tokens=np.zeros(len(good), np.int64),
                tenant=np.zeros(len(good), np.int32), starts=np.arange(len(good) + 1), blocks=interner.add(good["id"]),
                block_size=self.block_size, chained=self.chained, source=told | self.settings() | lines.report(),
                first_row=row, first_block=known,
            )  # fmt: skip
            row += len(good)


def write_oracle_general(path: str | Path, trace: RequestTrace, *, block_bytes: int = 1) -> None:
    """Write the accesses of a trace, one record each; which request they belong to, and all lengths, are lost.

    Parameters
    ----------
    path : path
        File to create or replace; libCacheSim takes the format from the name's ending ``.oracleGeneral``.
    trace : RequestTrace
        The whole trace. Times are cut to whole seconds.
    block_bytes : int
        Size of every object; with 1, libCacheSim's sizes count blocks.

    Raises
    ------
    BadInput
        If `trace` has no blocks or is a piece, or a time or `block_bytes` does not fit into 32 bits.
    """
    if trace.first_row or not len(trace.blocks):
        raise BadInput(f"{trace.name} has no blocks, or is a piece of a trace: give a whole trace with block ids")
    if not 1 <= block_bytes < 2**32 or trace.time_s[0] < 0 or trace.time_s[-1] >= 2**32:
        raise BadInput(
            f"{trace.name}: oracleGeneral holds times of 0 to 2^32 s and sizes of 1 to 2^32 bytes: shift or scale them"
        )
    records = np.empty(len(trace.blocks), RECORD)
    records["time_s"] = np.repeat(trace.time_s, np.diff(trace.starts)).astype(np.uint32)
    records["id"], records["size_bytes"], records["next"] = trace.blocks, block_bytes, _next_access(trace.blocks)
    path = Path(path)
    draft = path.with_name(f"{path.name}.new")
    try:
        records.tofile(draft)
        draft.replace(path)
    except OSError as error:
        raise BadInput(f"{str(path)!r} cannot be written ({error.strerror or error}): choose another place") from error
    finally:
        draft.unlink(missing_ok=True)


def _next_access(blocks: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return for each access which one, counted from 1, is the next to the same block; -1 for none."""
    order = np.argsort(blocks, kind="stable")  # a block's accesses side by side, in their order
    following = np.full(len(blocks), -1)
    same = blocks[order[1:]] == blocks[order[:-1]]
    following[order[:-1][same]] = order[1:][same] + 1
    return following


def _chunks(path: Path) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the records in chunks, each with the number of its first."""
    try:
        size, first = path.stat().st_size, 0
        if size % RECORD.itemsize:
            raise TraceError(
                f"{str(path)!r} has {size} bytes, no multiple of the {RECORD.itemsize} of a record: it is cut short, "
                "compressed or of another format; copy or decompress it again"
            )
        with path.open("rb") as file:
            while len(records := np.fromfile(file, RECORD, PIECE_BLOCKS)):
                yield first, records
                first += len(records)
    except OSError as error:
        raise TraceError(f"{str(path)!r} cannot be read ({error.strerror or error}): give a trace file") from error


def _good(lines: Lines, first: int, records: NDArray[Any], last_s: float) -> tuple[NDArray[Any], float]:
    """Return the records that can be used, and the time of the last; the others are counted, or raise `TraceError`."""
    latest = np.maximum.accumulate(np.maximum(records["time_s"], np.uint32(last_s)))
    empty, back = records["size_bytes"] == 0, records["time_s"] < latest
    for index in np.flatnonzero(empty | back):
        expected = "expected a size of at least 1 byte" if empty[index] else "expected a time that does not go backwards"
        lines.skip(f"{str(lines.path)!r}, record {first + index + 1}: {expected}")
    good = records[~(empty | back)]
    return good, float(good["time_s"][-1]) if len(good) else last_s
