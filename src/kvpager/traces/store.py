"""What recordings on disk have in common: who may be overwritten, counts that replace each other whole, a Zarr group's marks."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import StorageFull, TraceError

if TYPE_CHECKING:
    import zarr

__all__ = [
    "DONE_FILES",
    "RecordingWriter",
    "check_target",
    "format_of",
    "geometry_of",
    "open_recording",
    "read_done",
    "sync",
    "write_done",
    "write_whole",
]

DONE_FILES = ("steps_done", "segments_done")
"""Small files that say how much of a recording counts; what holds one of them is a recording."""


def check_target(path: Path, *, overwrite: bool) -> None:
    """Raise `TraceError` if a recording cannot be created at `path`; nothing is changed."""
    if not path.parent.is_dir():
        raise TraceError(
            f"recording {str(path)!r} cannot be created: there is no directory {str(path.parent)!r}; create it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise TraceError(f"recording {str(path)!r} cannot be created: {str(path.parent)!r} is not writable; choose another place")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise TraceError(f"recording {str(path)!r} exists already: choose another name, or allow it to be overwritten")
    if not any((path / name).is_file() for name in DONE_FILES):
        raise TraceError(f"{str(path)!r} is not a recording, so it is not overwritten: choose another name")


def format_of(path: Path) -> str | None:
    """Return the format that a recording says it has; None if it says nothing, which its reader will explain."""
    try:
        return str(json.loads((path / "zarr.json").read_bytes())["attributes"]["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def open_recording(path: Path, *, form: str, version: int, maker: str) -> zarr.Group:
    """Open a recording's group for reading.

    Parameters
    ----------
    path : Path
        Directory.
    form : str
        The format it must have.
    version : int
        The newest version that can be read.
    maker : str
        The command that makes such recordings, for the messages.

    Raises
    ------
    TraceError
        If there is none, or it is foreign or of a newer version.
    """
    import zarr

    if not path.is_dir():
        raise TraceError(f"recording {str(path)!r} does not exist: '{maker}' makes one")
    try:
        group = zarr.open_group(path, mode="r")
        attributes = dict(group.attrs)
    except Exception as error:
        raise TraceError(f"{str(path)!r} is not a Zarr group ({error}): give a directory that '{maker}' wrote") from error
    if attributes.get("format") != form:
        raise TraceError(f"{str(path)!r} is a Zarr store of another program: give a directory that '{maker}' wrote")
    found = attributes.get("version")
    if not isinstance(found, int) or found > version:
        raise TraceError(
            f"recording {str(path)!r} has format version {found}, but this kvpager reads up to {version}: "
            "update kvpager, or record anew"
        )
    return group


def geometry_of(document: Mapping[str, Any]) -> KVGeometry:
    """Read a geometry from its JSON; whatever is wrong with it is a KeyError, TypeError or ValueError."""
    fields = dict(document)
    return KVGeometry(layers=tuple(LayerKV(**layer) for layer in fields.pop("layers")), **fields)


def read_done(path: Path, name: str) -> int:
    """Return how much of a recording counts; raise `TraceError` if it does not say."""
    try:
        return int((path / name).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise TraceError(
            f"recording {str(path)!r} is truncated: its file {name!r} is missing or unreadable; record anew"
        ) from error


def write_done(path: Path, name: str, count: int) -> None:
    """Say that the first `count` parts of a recording count, once they are on disk."""
    write_whole(path / name, f"{count}\n".encode("ascii"))


def write_whole(file: Path, content: bytes) -> None:
    """Replace `file` by `content`: a reader finds the old or the new, whatever happens meanwhile."""
    draft = file.with_name(f"{file.name}.new")
    draft.write_bytes(content)
    sync(draft)
    draft.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RecordingWriter:
    """A recording that grows, part by part, until it is closed or the disk is full. A context manager that closes it.

    A subclass says how its parts are created, written and closed.

    Parameters
    ----------
    path : Path
        Directory to create.
    overwrite : bool
        Replace an existing recording; anything else at `path` is never touched.

    Raises
    ------
    TraceError
        If `path` exists, or cannot be created.
    StorageFull
        If the disk is full; nothing is left behind.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        check_target(path, overwrite=overwrite)
        self.path = path
        self._full = False
        if path.exists():
            shutil.rmtree(path)
        try:
            with self._space():
                self._create()
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise

    def close(self) -> None:
        """Write what is pending; a recording without a single part is removed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def _space(self) -> Iterator[None]:
        """Raise `StorageFull` where the disk turns out to be full, and remember it."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._full = True
            full = StorageFull(f"the disk is full: {self._kept()}; free space or record to another disk")
            full.errno = error.errno
            raise full from error

    def _create(self) -> None:
        """Make the recording, without a part yet."""
        raise NotImplementedError

    def _kept(self) -> str:
        """What a full disk leaves of the recording, in words."""
        raise NotImplementedError
