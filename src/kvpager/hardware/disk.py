"""A scratch file on a disk, read and written past the page cache, and removed whatever happens."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kvpager.errors import BadInput, StorageFull
from kvpager.evidence import Quantity
from kvpager.hardware.bus import bus_limit_bytes_per_s
from kvpager.hardware.samples import Samples

__all__ = ["PIECE_BYTES", "Scratch", "disk_limit", "file_system", "link_limit"]

PIECE_BYTES = 4 << 20
"""What the file is filled with at a time, and the least it must hold."""

_SPEEDS = {"8.0 GT/s": "pcie-3", "16.0 GT/s": "pcie-4", "32.0 GT/s": "pcie-5", "64.0 GT/s": "pcie-6"}
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_REPEATS = 3


def link_limit(device: Path) -> Quantity | None:
    """Limit of the PCIe link that a device hangs on; None if the system does not tell.

    Parameters
    ----------
    device : Path
        Its folder in sysfs; the nearest parent with a link is used.

    Returns
    -------
    Quantity or None
        Bytes a second of one direction, for the fastest link that the device supports.
    """
    for folder in (device, *device.parents):
        try:
            speed = (folder / "max_link_speed").read_text().strip()
            lanes = int((folder / "max_link_width").read_text())
        except (OSError, ValueError):
            continue
        bus = next((name for start, name in _SPEEDS.items() if speed.startswith(start)), None)
        return None if bus is None or not 1 <= lanes <= 16 else bus_limit_bytes_per_s(bus, lanes)
    return None


def disk_limit(directory: Path) -> Quantity | None:
    """Limit of the link of the NVMe drive below a directory; None for any other disk, whose link is not known to bind."""
    number = directory.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    try:
        real = device.resolve(strict=True)
    except OSError:
        return None
    return link_limit(real) if "nvme" in real.parts else None


def file_system(directory: Path) -> str:
    """Type of the file system that holds a directory, such as ``"ext4"``; ``"unknown"`` where the system does not tell."""
    best, found = "", "unknown"
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, place, kind, *_ = line.split(" ")
            place = place.encode().decode("unicode_escape")
            if len(place) >= len(best) and directory.resolve().is_relative_to(place):
                best, found = place, kind
    return found


class Scratch:
    """A temporary file in `directory`, of at most `max_bytes`. Use it as a context: leaving it removes the file.

    Parameters
    ----------
    directory : Path
        On the disk to measure.
    max_bytes : int
        Most bytes that the file may take.

    Attributes
    ----------
    direct : bool
        Whether transfers bypass the page cache. Where the file system refuses ``O_DIRECT``, or is itself memory, they
        do not, and what is measured is the page cache.
    size_bytes : int
        Bytes that the file holds, once filled.

    Raises
    ------
    BadInput
        If the directory is missing or cannot be written to.
    StorageFull
        If the disk has too little room; nothing stays behind.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        if not directory.is_dir():
            raise BadInput(f"probe directory {str(directory)!r} is no directory: name one on the disk to measure")
        self.directory = directory
        self.max_bytes = max_bytes
        self.file_system = file_system(directory)
        self.limit: Quantity | None = None
        self.direct = False
        self.size_bytes = 0
        self._folder = ""
        self._file = -1

    def __enter__(self) -> Scratch:
        free = shutil.disk_usage(self.directory).free
        if free < 2 * self.max_bytes:  # half of what is free stays free, whatever else writes meanwhile
            raise StorageFull(
                f"probe directory {str(self.directory)!r} has {free >> 20} MiB free, the probe wants twice "
                f"{self.max_bytes >> 20} MiB: free some, or name a directory on another disk"
            )
        with self._refusals():
            self._folder = tempfile.mkdtemp(prefix=".kvpager-probe-", dir=self.directory)
            path, flags = os.path.join(self._folder, "scratch"), os.O_RDWR | os.O_CREAT
            self.direct = self.file_system not in _MEMORY_FILE_SYSTEMS
            try:
                self._file = os.open(path, flags | (getattr(os, "O_DIRECT", 0) if self.direct else 0), 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.direct = False
                self._file = os.open(path, flags, 0o600)
            self.direct = self.direct and hasattr(os, "O_DIRECT")
            self.limit = disk_limit(self.directory) if self.direct else None
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn the system's errors into one clear one, with nothing left behind."""
        try:
            yield
        except OSError as error:
            self._remove()
            place = f"probe directory {str(self.directory)!r}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"{place} ran full while it was probed; nothing was left behind: free some room") from error
            raise BadInput(f"{place} cannot be used ({error.strerror}): name one that can be written to") from error

    def fill(self, until: float) -> None:
        """Write the file from its start, until it has `max_bytes` or ``time.perf_counter()`` passes `until`."""
        with self._refusals(), mmap.mmap(-1, PIECE_BYTES) as piece:
            piece.write(np.random.default_rng(0).bytes(PIECE_BYTES))  # random, so that no drive can shrink it
            while self.size_bytes + PIECE_BYTES <= self.max_bytes and (self.size_bytes == 0 or time.perf_counter() < until):
                self.size_bytes += os.pwritev(self._file, [piece], self.size_bytes)
            os.fsync(self._file)

    def measure(self, size_bytes: int, depth: int, seconds: float, *, write: bool) -> Samples:
        """Transfer `size_bytes` at random places with `depth` threads for about `seconds`.

        Returns
        -------
        Samples
            Three repeats, fewer if one takes too long. Writes include the flush at the end of each.
        """
        what = f"{'write' if write else 'read'} of {self.directory}" + ("" if self.direct else " (page cache)")
        rates: list[float] = []
        times: list[float] = []
        with self._refusals(), contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(depth))
            buffers = [stack.enter_context(mmap.mmap(-1, size_bytes)) for _ in range(depth)]
            for thread, buffer in enumerate(buffers):
                buffer.write(np.random.default_rng(thread).bytes(size_bytes))  # also touches its pages, before time runs
            begin = time.perf_counter()
            while len(rates) < _REPEATS and not (rates and time.perf_counter() > begin + 1.5 * seconds):
                start = time.perf_counter()
                until, seed = start + seconds / _REPEATS, len(rates) * depth
                work = [
                    pool.submit(self._transfer, buffer, until, seed + thread, write=write)
                    for thread, buffer in enumerate(buffers)
                ]
                done = [each for job in work for each in job.result()]
                if write:
                    os.fdatasync(self._file)
                rates.append(len(done) * size_bytes / (time.perf_counter() - start))
                times += done
        return Samples(what, size_bytes, depth, tuple(rates), statistics.median(times), self.limit)

    def _transfer(self, buffer: mmap.mmap, until: float, seed: int, *, write: bool) -> list[float]:
        """One thread's transfers, at least one: the time that each took."""
        size = len(buffer)
        places = np.random.default_rng(seed).integers(0, self.size_bytes // size, 4096).tolist()
        move = os.pwritev if write else os.preadv
        times: list[float] = []
        begin = time.perf_counter()
        while not times or begin < until:
            moved = move(self._file, [buffer], places[len(times) % len(places)] * size)
            if moved != size:
                raise OSError(errno.EIO, f"only {moved} of {size} bytes were moved")
            now = time.perf_counter()
            times.append(now - begin)
            begin = now
        return times
