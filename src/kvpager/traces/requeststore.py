"""The request trace on disk: one Parquet file that other tools can read, and that streams.

One row a request, its blocks as a list; row groups of about a million block ids, so that a piece fits anywhere. What is not
a column stands as JSON under ``kvpager`` in the file's metadata. The file appears under its name once it is complete.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kvpager.errors import StorageFull, TraceError
from kvpager.traces.requests import COLUMNS, RequestTrace, checked
from kvpager.traces.room import check_room
from kvpager.traces.store import sync

__all__ = ["FORMAT", "VERSION", "count_accesses", "iter_requests", "read_requests", "write_requests"]

FORMAT, VERSION = "kvpager-requests", 1
_GROUP_BLOCKS, _GROUP_ROWS = 1 << 20, 1 << 17
_KEY = b"kvpager"
_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))
_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(dtype), nullable=False) for name, dtype in COLUMNS.items()]
    + [pa.field("blocks", _LIST, nullable=False)]
)


def write_requests(path: str | Path, trace: RequestTrace | Iterable[RequestTrace], *, overwrite: bool = False) -> None:
    """Write a request trace, whole or piece by piece.

    Parameters
    ----------
    path : path
        File to create, by custom ``*.parquet``.
    trace : RequestTrace or iterable of RequestTrace
        The whole, or all its pieces in order; each is checked.
    overwrite : bool
        Replace what is there.

    Raises
    ------
    TraceError
        If `path` exists or cannot be created, or a piece is wrong; nothing is left behind.
    StorageFull
        If the disk is full; nothing is left behind.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise TraceError(f"request trace {str(path)!r} exists already: choose another name, or allow it to be overwritten")
    draft = path.with_name(f"{path.name}.new")
    try:
        _write(draft, checked([trace] if isinstance(trace, RequestTrace) else trace))
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"the disk is full: request trace {str(path)!r} is not written; free space first") from error
        raise TraceError(
            f"request trace {str(path)!r} cannot be written ({error.strerror or error}): choose another place"
        ) from error
    finally:
        draft.unlink(missing_ok=True)


def iter_requests(path: str | Path, batch: int = _GROUP_ROWS) -> Iterator[RequestTrace]:
    """Read a request trace piece by piece; memory holds one row group, about a million block ids.

    Parameters
    ----------
    path : path
        File that `write_requests` wrote.
    batch : int
        Most requests of a piece.

    Yields
    ------
    RequestTrace
        The pieces, each checked.

    Raises
    ------
    TraceError
        If there is no such file, it is foreign, of a newer version, cut short or damaged.
    """
    path = Path(path)
    with _opened(path) as file:
        yield from checked(_pieces(path, file, batch))


def count_accesses(path: str | Path) -> int:
    """Return how many block ids a request trace says that it holds; raise `TraceError` as `iter_requests`."""
    path = Path(path)
    with _opened(path) as file:
        return _count(path, _about(path, file), "accesses")


def read_requests(path: str | Path) -> RequestTrace:
    """Read a whole request trace into memory.

    Parameters
    ----------
    path : path
        File that `write_requests` wrote.

    Returns
    -------
    RequestTrace
        Checked.

    Raises
    ------
    TraceError
        If there is no such file, it is foreign, of a newer version, cut short or damaged.
    CapacityError
        If it would not fit into the free memory: `iter_requests` streams it.
    """
    path = Path(path)
    with _opened(path) as file:
        about = _about(path, file)
        rows, accesses = file.metadata.num_rows, _count(path, about, "accesses")
        sizes = {name: (rows, dtype) for name, dtype in COLUMNS.items()} | {
            "starts": (rows + 1, np.int64),
            "blocks": (accesses, np.int32),
        }
        needed = sum(length * np.dtype(dtype).itemsize for length, dtype in sizes.values())
        check_room(needed + 64 * _GROUP_BLOCKS, f"request trace {str(path)!r}")
        whole: dict[str, Any] = {name: np.empty(length, dtype) for name, (length, dtype) in sizes.items()}
        whole["starts"][0] = row = access = 0
        for piece in checked(_pieces(path, file, _GROUP_ROWS)):
            ends = row + len(piece), access + len(piece.blocks)
            if ends[1] > accesses:
                break
            for name in COLUMNS:
                whole[name][row : ends[0]] = getattr(piece, name)
            np.add(piece.starts[1:], access, out=whole["starts"][row + 1 : ends[0] + 1])
            whole["blocks"][access : ends[1]] = piece.blocks
            row, access = ends
        if (row, access) != (rows, accesses):
            raise TraceError(f"request trace {str(path)!r} holds other block ids than it says: it is damaged, convert it again")
    return RequestTrace(**whole, **_facts(path, about))


def _write(draft: Path, pieces: Iterator[RequestTrace]) -> None:
    last, accesses = next(pieces), 0
    with pq.ParquetWriter(draft, _SCHEMA, compression="zstd", use_dictionary=False, write_page_checksum=True) as writer:
        while True:
            for first, after in _groups(last.starts):
                writer.write_table(_table(last, first, after))
            accesses += len(last.blocks)
            following = next(pieces, None)
            if following is None:
                break
            last = following
        about = {
            "format": FORMAT, "version": VERSION, "block_size": last.block_size, "chained": last.chained,
            "tenants": list(last.tenants), "accesses": accesses, "distinct": last.distinct, "source": dict(last.source),
        }  # fmt: skip
        writer.add_key_value_metadata({_KEY: json.dumps(about).encode()})


def _groups(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut requests into row groups: at most so many rows, and so many block ids unless one request has more."""
    first, rows = 0, len(starts) - 1
    while first < rows:
        fitting = int(np.searchsorted(starts, starts[first] + _GROUP_BLOCKS, side="right")) - 1
        after = min(max(fitting, first + 1), first + _GROUP_ROWS, rows)
        yield first, after
        first = after


def _table(trace: RequestTrace, first: int, after: int) -> pa.Table:
    begin, end = trace.starts[first], trace.starts[after]
    offsets = pa.array((trace.starts[first : after + 1] - begin).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(trace.blocks[begin:end]), type=_LIST)
    return pa.table([*(pa.array(getattr(trace, name)[first:after]) for name in COLUMNS), lists], schema=_SCHEMA)


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise TraceError(f"request trace {str(path)!r} does not exist: give a Parquet file that kvpager wrote") from None
    except (pa.ArrowException, OSError) as error:
        raise TraceError(
            f"{str(path)!r} is no whole Parquet file ({_line(error)}): it is foreign or cut short; give a request trace, "
            "or convert it again"
        ) from error


def _about(path: Path, file: pq.ParquetFile) -> Mapping[str, Any]:
    """Return what the file says of itself, once it is known to be a request trace that this version reads."""
    try:
        about = json.loads((file.metadata.metadata or {})[_KEY])
        mine = about["format"] == FORMAT and file.schema_arrow.equals(_SCHEMA)
    except (KeyError, ValueError, TypeError):
        mine = False
    if not mine:
        raise TraceError(f"{str(path)!r} is a Parquet file of another program: give a request trace that kvpager wrote")
    version = about.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise TraceError(
            f"request trace {str(path)!r} has format version {version}, but this kvpager reads up to {VERSION}: "
            "update kvpager, or convert it again"
        )
    result: Mapping[str, Any] = about
    return result


def _facts(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {
            "block_size": int(about["block_size"]),
            "chained": bool(about["chained"]),
            "tenants": tuple(map(str, about["tenants"])),
            "source": dict(about["source"]),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _count(path: Path, about: Mapping[str, Any], name: str) -> int:
    value = about.get(name)
    if not isinstance(value, int) or value < 0:
        raise _damaged(path, f"{name} is {value!r}")
    return value


def _pieces(path: Path, file: pq.ParquetFile, batch: int) -> Iterator[RequestTrace]:
    facts, row, block = _facts(path, _about(path, file)), 0, 0
    for group in range(file.num_row_groups):
        check_room(2 * file.metadata.row_group(group).total_byte_size, f"row group {group} of request trace {str(path)!r}")
        try:
            table = file.read_row_group(group, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error
        for part in table.to_batches(max_chunksize=batch):
            piece = _piece(part, facts, row, block)
            yield piece
            row, block = row + len(piece), piece.distinct


def _piece(part: pa.RecordBatch, facts: Mapping[str, Any], row: int, block: int) -> RequestTrace:
    lists = part.column("blocks")
    offsets = lists.offsets.to_numpy()
    return RequestTrace(
        **{name: part.column(name).to_numpy() for name in COLUMNS},
        starts=(offsets - offsets[0]).astype(np.int64),
        blocks=lists.values.to_numpy()[offsets[0] : offsets[-1]],
        **facts,
        first_row=row,
        first_block=block,
    )


def _damaged(path: Path, why: object) -> TraceError:
    return TraceError(f"request trace {str(path)!r} is damaged ({_line(why)}): convert it again, or copy it again")


def _line(error: object) -> str:
    return str(error).strip().split("\n")[0]
