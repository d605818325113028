"""The run recording on disk: one Zarr group, a subgroup a segment, safe against kills, full disks and missing chunks.

Calls are held in memory until they make a segment; its arrays are written and synced, and only then the small file
``segments_done`` is replaced. Readers believe that file and nothing else, so a kill loses at most the segment in memory.
What the run itself counted stands in ``counts.json``, written when it ends.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from kvpager.core import Budget
from kvpager.errors import TraceError
from kvpager.traces.run import COLUMNS, RUN_FORMAT, Event, Packer, RunHeader, RunRecording, unpack
from kvpager.traces.store import RecordingWriter, geometry_of, open_recording, read_done, sync, write_done, write_whole

__all__ = ["RUN_VERSION", "SEGMENT_NUMBERS", "RunWriter", "read_run"]

RUN_VERSION = 1
SEGMENT_NUMBERS = 1 << 20
"""Numbers that make a segment: 4 MiB of memory."""

_DONE, _COUNTS = "segments_done", "counts.json"
_MAKER = "kvpager generate --record"


class RunWriter(RecordingWriter):
    """Writes a run's calls as they are made.

    Parameters
    ----------
    path : Path
        Directory to create.
    header : RunHeader
        Provenance and settings.
    overwrite : bool
        Replace an existing recording; anything else at `path` is never touched.
    segment_numbers : int
        How many numbers to hold in memory.

    Raises
    ------
    TraceError
        If `path` exists, or cannot be created.
    StorageFull
        If the disk is full; nothing is left behind.
    """

    def __init__(self, path: Path, header: RunHeader, *, overwrite: bool = False, segment_numbers: int = SEGMENT_NUMBERS) -> None:
        self.segments_done = 0
        self._header, self._most = header, segment_numbers
        self._packer = Packer()
        super().__init__(path, overwrite=overwrite)

    def append(self, event: Event) -> None:
        """Take one call; its arrays are copied. Writes a segment when there is enough."""
        self._packer.add(event)
        if self._packer.size >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a segment of its own.

        Raises
        ------
        StorageFull
            If the disk is full; the segments before stay readable, and nothing is written from then on.
        """
        if self._full or self._packer.size == 0:
            return
        name = _segment(self.segments_done)
        with self._space():
            part = self._group.create_group(name)
            for column, data in self._packer.take().items():
                _write(part, column, data)
            for file in (self.path / name).rglob("*"):
                sync(file)
            sync(self.path / name)
            write_done(self.path, _DONE, self.segments_done + 1)
        self.segments_done += 1

    def close(self, counts: Mapping[str, Any] | None = None) -> None:
        """Write what is in memory, and what the run counted, if it came to its end; remove a recording without a single call."""
        self.flush()
        if not self.segments_done:
            shutil.rmtree(self.path, ignore_errors=True)
        elif counts is not None and not self._full:
            with self._space():
                write_whole(self.path / _COUNTS, json.dumps(counts).encode())

    def _create(self) -> None:
        attributes = {"format": RUN_FORMAT, "version": RUN_VERSION, "header": _header_to_json(self._header)}
        self._group = zarr.create_group(self.path, attributes=attributes)
        sync(self.path / "zarr.json")
        write_done(self.path, _DONE, 0)

    def _kept(self) -> str:
        return (
            f"run recording {str(self.path)!r} stops after {self.segments_done} segments"
            f"{', which stay readable' if self.segments_done else ''}"
        )


def read_run(path: str | Path) -> RunRecording:
    """Read the complete segments of a run recording into memory.

    Parameters
    ----------
    path : path
        Directory written by `RunWriter`; it may still be growing.

    Raises
    ------
    TraceError
        If there is no such store, it is foreign, of a newer version, truncated or corrupt.
    """
    path = Path(path)
    group = open_recording(path, form=RUN_FORMAT, version=RUN_VERSION, maker=_MAKER)
    header = _header_from_json(path, group.attrs.get("header"))
    done = read_done(path, _DONE)
    if done < 1:
        raise TraceError(f"run recording {str(path)!r} has no complete segment yet: wait for it, or record anew")
    parts = [_read_segment(path, group, number) for number in range(done)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    return RunRecording(header, columns, _read_counts(path))


def _segment(number: int) -> str:
    return f"{number:06d}"


def _write(group: zarr.Group, name: str, data: NDArray[Any]) -> None:
    array = group.create_array(
        name, shape=data.shape, chunks=(max(len(data), 1), *data.shape[1:]), dtype=data.dtype,
        compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
        chunk_key_encoding={"name": "default", "separator": "."},
    )  # fmt: skip
    if len(data):
        array[:] = data


def _read_segment(path: Path, group: zarr.Group, number: int) -> dict[str, NDArray[Any]]:
    place = f"run recording {str(path)!r}, segment {number}"
    columns = {name: _read(path, group, f"{_segment(number)}/{name}", place) for name in COLUMNS}
    try:
        next(unpack(columns), None)
    except ValueError as error:
        raise TraceError(f"{place}: {error}; the store is corrupt, record anew") from error
    return columns


def _read(path: Path, group: zarr.Group, name: str, place: str) -> NDArray[Any]:
    kind, width = COLUMNS[name.partition("/")[2]]
    try:
        array = group[name]
        if not isinstance(array, zarr.Array):
            raise TypeError("a group")
    except Exception as error:
        raise TraceError(
            f"{place}: array {name!r} is missing or damaged ({error!r}): the store is truncated; record anew"
        ) from error
    if array.dtype != np.dtype(kind) or array.shape[1:] != ((width,) if width else ()):
        raise TraceError(f"{place}: {name!r} is {array.dtype}{list(array.shape)}, which its format contradicts; record anew")
    if array.shape[0] and not (path / name / ("c.0.0" if width else "c.0")).is_file():
        raise TraceError(f"{place}: the data of {name!r} is missing; the store is incomplete, record anew")
    try:
        return np.asarray(array[:])
    except Exception as error:
        raise TraceError(f"{place}: {name!r} cannot be decoded ({error!r}): the store is corrupt; record anew") from error


def _read_counts(path: Path) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads((path / _COUNTS).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TraceError(f"run recording {str(path)!r} has a damaged {_COUNTS!r} ({error}): record anew") from error
    return found


def _header_to_json(header: RunHeader) -> dict[str, Any]:
    document = dataclasses.asdict(header)
    return document | {"budget": header.budget._asdict(), "versions": dict(header.versions), "machine": dict(header.machine)}


def _header_from_json(path: Path, document: object) -> RunHeader:
    try:
        if not isinstance(document, Mapping):
            raise TypeError("no header")
        budget = dict(document["budget"])
        fields = dict(document) | {
            "geometry": geometry_of(document["geometry"]),
            "layers": tuple(document["layers"]),
            "budget": Budget(**budget | {"payload_bytes": tuple(budget["payload_bytes"])}),
        }
        return RunHeader(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"run recording {str(path)!r} has a damaged header ({error!r}): record anew") from error
