"""A file of a report, put in its place in one step."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from kvpager.errors import BadInput, StorageFull

__all__ = ["write_file"]


def write_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader sees the old file or the new one.

    Parameters
    ----------
    path : Path
        File to write; its folder is made if need be.
    content : bytes
        All of it.

    Raises
    ------
    BadInput
        If `path` is a folder or cannot be written.
    StorageFull
        If the disk is full.
    """
    if path.is_dir():
        raise BadInput(f"cannot write {path}: it is a folder; name a file in it")
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"cannot write {path}: the disk is full; free {len(content):,} bytes and try again") from error
        raise BadInput(f"cannot write {path}: {error.strerror}; choose a folder that you may write to") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
