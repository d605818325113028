"""The only calls that reach the file system, in one object: tests replace it to lose writes or to fail."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE_BYTES", "Buffer", "Files", "aligned", "read_fully", "write_fully"]

PAGE_BYTES = 4096

Buffer = memoryview


class Files:
    """The operating system's files. Everything is created for its owner alone (0600, folders 0700)."""

    def make_folder(self, path: Path) -> None:
        """Create `path` and its parents where they are missing."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, path: Path, flags: int) -> int:
        """Open `path` and return its descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        """Close `fd`."""
        os.close(fd)

    def size(self, fd: int) -> int:
        """Bytes of the file behind `fd`."""
        return os.fstat(fd).st_size

    def preadv(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Read into `buffers`; return the bytes read."""
        return os.preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write `buffers`; return the bytes written."""
        return os.pwritev(fd, buffers, offset)

    def allocate(self, fd: int, length: int) -> None:
        """Reserve room for the first `length` bytes of the file; raise `OSError` (ENOSPC) if there is none."""
        os.posix_fallocate(fd, 0, length)

    def sync(self, fd: int) -> None:
        """Return when everything written to `fd` would survive a power cut."""
        os.fsync(fd)

    def sync_folder(self, path: Path) -> None:
        """Return when the names in `path` would survive a power cut."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, fd: int) -> bool:
        """Take `fd`'s lock; False if another open file holds it. It goes with the descriptor, however that ends."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        return True

    def remove(self, path: Path) -> None:
        """Remove `path` if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        """Give `old` the name `new`, in place of what has it."""
        os.replace(old, new)

    def direct_works(self, path: Path) -> bool:
        """Whether `path` can be read around the page cache (O_DIRECT): not on tmpfs, nor on some network file systems."""
        page = aligned(PAGE_BYTES).data
        try:
            fd = self.open(path, os.O_RDONLY | os.O_DIRECT)
        except (OSError, AttributeError):
            return False
        try:
            return self.preadv(fd, [page], 0) == PAGE_BYTES
        except OSError:
            return False
        finally:
            self.close(fd)


def aligned(length: int) -> NDArray[np.uint8]:
    """Zeroed uint8 [length] that begins on a page."""
    room = np.zeros(length + PAGE_BYTES, np.uint8)
    start = -room.ctypes.data % PAGE_BYTES
    return room[start : start + length]


def read_fully(files: Files, fd: int, buffers: list[Buffer], offset: int) -> int:
    """Read until `buffers` are full or the file ends; return the bytes read."""
    done, total = 0, sum(len(buffer) for buffer in buffers)
    while done < total:
        try:
            got = files.preadv(fd, buffers, offset + done)
        except OSError as error:
            if done and error.errno == errno.EINVAL:  # O_DIRECT refuses to go on behind an odd end
                break
            raise
        if got == 0:
            break
        done += got
        if done < total:
            buffers = _rest(buffers, got)
    return done


def write_fully(files: Files, fd: int, buffers: list[Buffer], offset: int) -> None:
    """Write all of `buffers`; raise `OSError` if the file takes no more."""
    left = sum(len(buffer) for buffer in buffers)
    while left:
        put = files.pwritev(fd, buffers, offset)
        if put == 0:
            raise OSError(errno.ENOSPC, "the file takes no more")
        offset, left, buffers = offset + put, left - put, _rest(buffers, put) if put < left else []


def _rest(buffers: list[Buffer], done: int) -> list[Buffer]:
    """What is left of `buffers` behind their first `done` bytes."""
    for number, buffer in enumerate(buffers):
        if done < len(buffer):
            return [buffer[done:], *buffers[number + 1 :]]
        done -= len(buffer)
    return []
