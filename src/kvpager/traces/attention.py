"""The attention trace on disk: one Zarr group, safe against kills, full disks and missing chunks.

Arrays are preallocated with NaN and cut into chunks of 16 steps, one file a chunk and array. A chunk's
files are written and synced first; then the small file ``steps_done`` is replaced. Readers believe
``steps_done`` and nothing else, and treat a chunk file that is missing below it as an error (Zarr itself
would fill it in silently). A kill therefore loses at most the 16 steps that are still in memory.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from kvpager.errors import TraceError
from kvpager.traces.decoder import Observation
from kvpager.traces.locality import SPLITS
from kvpager.traces.recording import ABSOLUTE_EDGES, RELATIVE_BINS, SPECIALS, Header, Recording
from kvpager.traces.store import RecordingWriter, check_target, geometry_of, open_recording, read_done, sync, write_done

__all__ = ["CHUNK_STEPS", "FORMAT", "VERSION", "AttentionWriter", "check_target", "read_recording"]

FORMAT, VERSION = "kvpager-attention", 1
CHUNK_STEPS = 16
_DONE = "steps_done"


class AttentionWriter(RecordingWriter):
    """Writes a recording step by step.

    Parameters
    ----------
    path : Path
        Directory to create.
    header : Header
        Provenance and shape.
    steps : int
        Most steps that will come; storage is reserved for them only as they come.
    prefill_mass : float16 [queries, layer, kv_head, block]
        Mass of the last prefill queries.
    overwrite : bool
        Replace an existing recording; anything else at `path` is never touched.

    Raises
    ------
    TraceError
        If `path` exists, or cannot be created.
    StorageFull
        If the disk is full; nothing is left behind.
    """

    def __init__(
        self, path: Path, header: Header, *, steps: int, prefill_mass: NDArray[np.float16], overwrite: bool = False
    ) -> None:
        self.steps_done = 0
        self._header, self._steps, self._prefill_mass = header, steps, prefill_mass
        self._pending = 0
        self._shapes = _shapes(header, steps)
        self._buffer = {name: np.empty((CHUNK_STEPS, *shape), np.float16) for name, shape in self._shapes.items()}
        super().__init__(path, overwrite=overwrite)

    def append(self, seen: Observation) -> None:
        """Take one step; every 16th call writes a chunk of each array and counts its steps as done."""
        if self._pending == CHUNK_STEPS:
            self._flush()
        row = {name: array[self._pending] for name, array in self._buffer.items()}
        blocks = seen.mass.shape[-1]
        row["mass"][..., :blocks], row["mass"][..., blocks:] = seen.mass, 0
        row["bound"][..., :blocks], row["bound"][..., blocks:] = seen.bound, -np.inf
        row["query_cosine"][:] = seen.query_cosine
        row["special"][:], row["relative"][:], row["absolute"][:] = np.split(seen.locality, SPLITS, axis=-1)
        self._pending += 1
        if self._pending == CHUNK_STEPS:
            self._flush()

    def close(self) -> None:
        """Write what is pending; a recording without a single step is removed."""
        if self._pending and not self._full:
            self._flush()
        if not self.steps_done:
            shutil.rmtree(self.path, ignore_errors=True)

    def _create(self) -> None:
        attributes = {"format": FORMAT, "version": VERSION, "header": _header_to_json(self._header)}
        self._group = zarr.create_group(self.path, attributes=attributes)
        for name, shape in self._shapes.items():
            self._array(name, (self._steps, *shape), (CHUNK_STEPS, *shape))
        padded = np.zeros((len(self._prefill_mass), *self._shapes["mass"]), np.float16)
        padded[..., : self._prefill_mass.shape[-1]] = self._prefill_mass
        self._array("prefill_mass", padded.shape, padded.shape)[:] = padded
        for file in self.path.rglob("*"):
            sync(file)
        write_done(self.path, _DONE, 0)

    def _array(self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]) -> zarr.Array[Any]:
        return self._group.create_array(
            name, shape=shape, chunks=chunks, dtype="float16", fill_value=np.nan,
            compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
            chunk_key_encoding={"name": "default", "separator": "."},
        )  # fmt: skip

    def _flush(self) -> None:
        first, after = self.steps_done, self.steps_done + self._pending
        with self._space():
            for name, rows in self._buffer.items():
                array = _member(self._group, name)
                array[first:after] = rows[: self._pending]
                sync(self.path / name / _chunk_key(array, first // CHUNK_STEPS))
                sync(self.path / name)
            write_done(self.path, _DONE, after)
        self.steps_done, self._pending = after, 0

    def _kept(self) -> str:
        return (
            f"recording {str(self.path)!r} stops with {self.steps_done} complete steps"
            f"{', which stay readable' if self.steps_done else ''}"
        )


def read_recording(path: str | Path, *, steps: int | None = None) -> Recording:
    """Read the complete steps of a recording into memory.

    Parameters
    ----------
    path : path
        Directory written by `AttentionWriter`; it may still be growing.
    steps : int, optional
        Read the first so many only.

    Returns
    -------
    Recording
        The block axis ends with the last block that exists after the last step.

    Raises
    ------
    TraceError
        If there is no such store, it is foreign, of a newer version, truncated or corrupt, or has fewer steps than asked.
    """
    path = Path(path)
    group = open_recording(path, form=FORMAT, version=VERSION, maker="kvpager record")
    header = _header_from_json(path, group.attrs.get("header"))
    done = _steps_done(path)
    if steps is not None and not 1 <= steps <= done:
        raise TraceError(f"recording {str(path)!r} has {done} complete steps, but {steps} were asked for: ask for 1 to {done}")
    count = done if steps is None else steps
    blocks = -(-(header.context_tokens + count) // header.block_size)
    arrays = {name: _read(path, group, name, shape, count) for name, shape in _shapes(header, done).items()}
    prefill = _read(path, group, "prefill_mass", arrays["mass"].shape[1:], None)
    arrays["mass"], arrays["bound"] = arrays["mass"][..., :blocks], arrays["bound"][..., :blocks]
    return Recording(header=header, prefill_mass=prefill[..., :blocks], **arrays)


def _shapes(header: Header, steps: int) -> dict[str, tuple[int, ...]]:
    """Shape of one step of each array, with room for all blocks after `steps` steps."""
    heads = (len(header.layers), header.num_kv_heads, -(-(header.context_tokens + steps) // header.block_size))
    queries = (len(header.layers), header.num_q_heads)
    return {
        "mass": heads,
        "bound": heads,
        "query_cosine": queries,
        "special": (*queries, len(SPECIALS)),
        "relative": (*queries, RELATIVE_BINS),
        "absolute": (*queries, len(ABSOLUTE_EDGES)),
    }


def _steps_done(path: Path) -> int:
    done = read_done(path, _DONE)
    if done < 1:
        raise TraceError(f"recording {str(path)!r} has no complete step yet: wait for it, or record anew")
    return done


def _read(path: Path, group: zarr.Group, name: str, shape: tuple[int, ...], steps: int | None) -> NDArray[np.float16]:
    """Read `steps` rows of an array (None: all of them) after checking that each of their chunks exists."""
    place = f"recording {str(path)!r}, array {name!r}"
    try:
        array = _member(group, name)
    except Exception as error:
        raise TraceError(f"{place} is missing or damaged ({error!r}): the store is truncated; record anew") from error
    rows = array.shape[0] if steps is None else steps
    smaller = len(array.shape) != len(shape) + 1 or any(a < b for a, b in zip(array.shape, (rows, *shape), strict=True))
    if array.dtype != np.float16 or smaller:
        raise TraceError(f"{place} is {array.dtype}{list(array.shape)}, which its header and {_DONE} contradict; record anew")
    for chunk in range(-(-rows // array.chunks[0])):
        if not (path / name / _chunk_key(array, chunk)).is_file():
            raise TraceError(
                f"{place}: the chunk at step {chunk * array.chunks[0]} is missing; the store is incomplete, record anew"
            )
    try:
        data = np.asarray(array[:rows])
    except Exception as error:
        raise TraceError(f"{place} cannot be decoded ({error!r}): the store is corrupt; record anew") from error
    bad = np.isnan(data).reshape(rows, -1).any(1)
    if bad.any():
        raise TraceError(f"{place} holds NaN at step {int(bad.argmax())}, below {_DONE}: the store is corrupt; record anew")
    return data


def _member(group: zarr.Group, name: str) -> zarr.Array[Any]:
    member = group[name]
    if not isinstance(member, zarr.Array):
        raise TraceError(f"{name!r} is a group, not an array")
    return member


def _chunk_key(array: zarr.Array[Any], chunk: int) -> str:
    metadata: Any = array.metadata
    return str(metadata.encode_chunk_key((chunk, *[0] * (array.ndim - 1))))


def _header_to_json(header: Header) -> dict[str, Any]:
    document = dataclasses.asdict(header)
    return document | {"versions": dict(header.versions), "machine": dict(header.machine)}


def _header_from_json(path: Path, document: object) -> Header:
    try:
        if not isinstance(document, Mapping):
            raise TypeError("no header")
        fields = dict(document) | {"geometry": geometry_of(document["geometry"]), "layers": tuple(document["layers"])}
        return Header(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"recording {str(path)!r} has a damaged header ({error!r}): record anew") from error
