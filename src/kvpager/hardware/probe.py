"""Measure this machine: memory, the disk below a directory, and GPU copies where there is a GPU.

What is measured: copies between two buffers larger than caches; the first touch of fresh pages; reads and writes past the
page cache (``O_DIRECT``) by transfer size and queue depth; copies between pinned host memory and a GPU. Each figure is a
median, with the smallest and largest repeat as its range. Bounded in time and disk; the scratch file is always removed.

What is not: mixed reads and writes, other programs' traffic, writes after a drive's fast cache is full, the memory of
another socket, and what a virtual disk keeps in memory outside this machine.

Run: ``write_profile(probe("."), "this-machine.toml")``.
"""

from __future__ import annotations

import datetime
import mmap
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.errors import BadInput
from kvpager.hardware.disk import PIECE_BYTES, Scratch
from kvpager.hardware.gpu import SIZES as COPY_SIZES
from kvpager.hardware.gpu import Gpu, find_gpu
from kvpager.hardware.profile import write_profile
from kvpager.hardware.samples import Samples, bounded

__all__ = ["probe", "write_profile"]

SIZES = (4 << 10, 64 << 10, 320 << 10, 1 << 20, 5 << 20)
"""Transfers of 4 KiB up to one 16-token block of a 70B model, 5 MiB; 320 KiB is one token of it."""

DEPTHS = (1, 4, 16)
LEAST_S = 0.02
"""Least time of a step, so that a late one still has more than a transfer or two to take a median of."""
WAYS = ("host to device", "device to host", "device to device")


class _Clock:
    """Shares the time out over what is still to be measured, and tells the caller how far it is."""

    def __init__(self, seconds: float, steps: int, progress: Callable[[str, int, int], None] | None) -> None:
        self._until = time.perf_counter() + 0.85 * seconds  # the last transfers of a step outlast it
        self._steps = steps
        self._done = 0
        self._progress = progress or (lambda what, done, total: None)

    def next(self, what: str) -> float:
        """Begin a step; return the seconds it may take."""
        self._progress(what, self._done, self._steps)
        left = max(self._until - time.perf_counter(), 0.0)
        share = max(left / max(self._steps - self._done, 1), LEAST_S)
        self._done += 1
        return share

    def end(self) -> None:
        """Report that everything is done."""
        self._progress("done", self._steps, self._steps)


def probe(
    directory: str | Path = ".",
    seconds: float = 20.0,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    max_bytes: int = 512 << 20,
    memory_bytes: int = 128 << 20,
    sizes: Sequence[int] = SIZES,
    depths: Sequence[int] = DEPTHS,
    name: str = "this",
) -> dict[str, Any]:
    """Measure this machine.

    Parameters
    ----------
    directory : str or Path
        A directory on the disk to measure; a scratch file is made in it and removed.
    seconds : float
        Time to spend; below about 5 s the least that every step needs takes longer.
    progress : callable, optional
        Called with what is being measured, steps done and steps in all.
    max_bytes : int
        Most bytes of the scratch file.
    memory_bytes : int
        Bytes of the buffers copied in memory; more than the processor's caches hold.
    sizes : sequence of int
        Bytes of one transfer; multiples of 4096.
    depths : sequence of int
        Transfers in flight at once.
    name : str
        Prefix of the entries' names.

    Returns
    -------
    dict
        A profile in the catalogue's format, for `write_profile`: ``about``, ``tiers``, ``links``, ``measurements``.

    Raises
    ------
    BadInput
        For a directory that cannot be used, or sizes that cannot be measured.
    StorageFull
        If the disk has too little room. Nothing is left behind.
    PhysicalBoundError
        If a rate above its bus's limit was measured twice (law 7).
    """
    _check(seconds, max_bytes, sizes, depths)
    gpu = find_gpu()
    copy_steps = len(WAYS) * len(COPY_SIZES) if isinstance(gpu, Gpu) else 0
    clock = _Clock(seconds, 3 + 2 * len(sizes) * len(depths) + copy_steps, progress)
    with Scratch(Path(directory), max_bytes) as scratch:  # first: a directory that cannot be used is refused at once
        memory = [_copy_memory(memory_bytes, clock.next("memory copies")), _touch(memory_bytes, clock.next("fresh pages"))]
        scratch.fill(time.perf_counter() + max(clock.next("scratch file"), 0.15 * seconds))
        disk = {write: _disk(scratch, clock, sizes, depths, write=write) for write in (False, True)}
    copies = _copies(gpu, clock) if isinstance(gpu, Gpu) else {}
    clock.end()
    about = _about(scratch, seconds, gpu)
    heading = {"label": "measured", "source": _source(about), "date": about["date"]}
    tiers = {f"{name}-dram": _memory_entry(memory[0], heading), f"{name}-disk": _disk_entry(scratch, disk, heading)}
    links = {f"{name}-gpu-{way.replace(' ', '-')}": _link_entry(copies[way], heading) for way in WAYS[:2] if copies}
    if copies and isinstance(gpu, Gpu):
        tiers[f"{name}-hbm"] = _hbm_entry(gpu, copies[WAYS[2]], heading)
    rows = [*memory, *disk[False], *disk[True], *(samples for way in copies.values() for samples in way)]
    return {"about": about, "tiers": tiers, "links": links, "measurements": [samples.row() for samples in rows]}


def _check(seconds: float, max_bytes: int, sizes: Sequence[int], depths: Sequence[int]) -> None:
    if not 0 < seconds < float("inf"):
        raise BadInput(f"probe time {seconds} s must be above zero: 20 is usual")
    if not sizes or not depths or min(depths) < 1 or any(size < 4096 or size % 4096 for size in sizes):
        raise BadInput(f"probe sizes {list(sizes)} and depths {list(depths)}: give multiples of 4096 bytes, and depths from 1")
    if max_bytes < max(PIECE_BYTES, *sizes):
        raise BadInput(f"probe file of {max_bytes} bytes is smaller than one transfer: give at least {max(PIECE_BYTES, *sizes)}")


def _copy_memory(size: int, seconds: float) -> Samples:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    times = _repeat(lambda: np.copyto(target, source), seconds)
    return Samples("memory copy, bytes copied", size, 1, tuple(size / each for each in times), statistics.median(times))


def _touch(size: int, seconds: float) -> Samples:
    def touch() -> None:
        with mmap.mmap(-1, size) as fresh:
            pages = np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE]
            pages[:] = 1
            del pages  # or the map could not be closed

    times = _repeat(touch, seconds)
    return Samples("first touch of fresh pages", size, 1, tuple(size / each for each in times), statistics.median(times))


def _repeat(action: Callable[[], object], seconds: float) -> list[float]:
    """Times of the action, at least three of them, after one to warm up."""
    action()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return times


def _disk(scratch: Scratch, clock: _Clock, sizes: Sequence[int], depths: Sequence[int], *, write: bool) -> list[Samples]:
    found = []
    for size in sizes:
        for depth in depths:
            share = clock.next(f"disk {'writes' if write else 'reads'} of {size >> 10} KiB, {depth} in flight")
            found.append(bounded(partial(scratch.measure, size, depth, share, write=write)))
    return found


def _copies(gpu: Gpu, clock: _Clock) -> dict[str, list[Samples]]:
    found: dict[str, list[Samples]] = {way: [] for way in WAYS}
    for way in WAYS:
        for size in COPY_SIZES:
            share = clock.next(f"{way}, {size >> 10} KiB")
            found[way].append(bounded(partial(gpu.measure, way, size, share)))
    return found


def _best(samples: Sequence[Samples], size: int) -> Samples:
    return max((each for each in samples if each.size_bytes == size), key=lambda each: each.median)


def _by_size(samples: Sequence[Samples]) -> list[dict[str, Any]]:
    sizes = sorted({each.size_bytes for each in samples})
    return [{"size": f"{size}B", **_best(samples, size).value()} for size in sizes]


def _memory_entry(copy: Samples, heading: dict[str, Any]) -> dict[str, Any]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "title": "Memory of this machine; rates are of one thread's copies, which read and write each byte once",
        "kind": "dram",
        **heading,
        "capacity_bytes": {"value": total, "unit": "B"},
        "read_bytes_per_s": copy.value(),
        "write_bytes_per_s": copy.value(),
    }


def _disk_entry(scratch: Scratch, disk: dict[bool, list[Samples]], heading: dict[str, Any]) -> dict[str, Any]:
    reads, writes = disk[False], disk[True]
    largest, smallest = max(each.size_bytes for each in reads), min(each.size_bytes for each in reads)
    single = [each for each in reads if each.size_bytes == smallest and each.depth == min(sample.depth for sample in reads)]
    where = f"{scratch.directory.name or scratch.directory} ({scratch.file_system})"
    return {
        "title": f"Disk of {where}, past the page cache" if scratch.direct else f"Page cache of {where}, not its disk",
        "kind": "disk" if scratch.direct else "page-cache",
        **heading,
        "capacity_bytes": {"value": shutil.disk_usage(scratch.directory).total, "unit": "B"},
        "read_bytes_per_s": _best(reads, largest).value(),
        "write_bytes_per_s": _best(writes, largest).value(),
        "latency_s": {"value": max(round(single[0].operation_s * 1e6, 2), 0.01), "unit": "us"},
        "read_by_size": _by_size(reads),
        "write_by_size": _by_size(writes),
    }


def _link_entry(samples: list[Samples], heading: dict[str, Any]) -> dict[str, Any]:
    largest, smallest = max(samples, key=lambda each: each.size_bytes), min(samples, key=lambda each: each.size_bytes)
    return {
        "title": largest.what,
        **heading,
        "bandwidth_bytes_per_s": largest.value(),
        "efficiency": {"value": 1, "unit": "1", "source": "the bandwidth is what copies reached"},
        "latency_s": {"value": max(round(smallest.operation_s * 1e6, 2), 0.01), "unit": "us"},
        "by_size": _by_size(samples),
    }


def _hbm_entry(gpu: Gpu, samples: list[Samples], heading: dict[str, Any]) -> dict[str, Any]:
    largest = max(samples, key=lambda each: each.size_bytes)
    return {
        "title": f"Memory of {gpu.title}; rates are of copies, which read and write each byte once",
        "kind": "hbm",
        **heading,
        "capacity_bytes": {"value": gpu.memory_bytes, "unit": "B"},
        "read_bytes_per_s": largest.value(),
        "write_bytes_per_s": largest.value(),
    }


def _about(scratch: Scratch, seconds: float, gpu: Gpu | str) -> dict[str, Any]:
    return {
        "machine": f"{_processor()}, {os.cpu_count()} CPUs",
        "system": f"{platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, numpy {np.__version__}",
        "gpu": f"{gpu.title}, {gpu.versions}" if isinstance(gpu, Gpu) else gpu,
        "date": datetime.date.today().isoformat(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "file_system": scratch.file_system,
        "disk_transfers": "O_DIRECT" if scratch.direct else "page cache: the file system refuses O_DIRECT or is memory itself",
        "scratch_bytes": scratch.size_bytes,
        "seconds": seconds,
    }


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def _source(about: dict[str, Any]) -> str:
    return f"kvpager probe: {about['machine']}; {about['system']}; {about['versions']}; command: {about['command']}"
