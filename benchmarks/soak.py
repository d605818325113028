"""A block store under mixed load for as long as you like, with evictions, restarts and faults.

Question
    Does the store grow in memory or descriptors, exceed its cap, or serve a wrong byte, however long it runs?
Method
    Four threads put, get, pin and delete chains of blocks of 1 KiB to 2 MiB for three tenants, one of whom has a quota, in a
    store that holds a fraction of what is put, memory lent to the disk or copied by chance, so that something is evicted all
    the time; a process of its own reads and writes through the owner. Every block that is served is compared, whole, with
    what was put under its key: content follows from key and version, and stands in the block, so that one that was replaced
    or deleted is noticed when it comes back.
    Every few seconds one of: the store is closed and opened; the other process is killed (kill -9); reads and writes fail,
    come late or move less than asked, at random, for a second; bits of a slab file are flipped. Slab files are measured all
    the while. Memory and descriptors are looked at after each restart; the slope of memory is fitted over the second half.
Command
    OMP_NUM_THREADS=1 python benchmarks/soak.py [--minutes 30] [--quick] [--dir DIR] [--seed N]

The last line of stdout is one JSON object; exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from kvpager import store as block_store
from kvpager.errors import KVPagerError
from kvpager.slab.files import Files, aligned
from kvpager.traces.provenance import now, this_machine, versions_of

CAP, QUOTA, KEYS, THREADS = 96 << 20, 16 << 20, 60, 4
TENANTS = (b"", b"a", b"b")
LENGTHS = (1 << 10, 20_000, 1 << 16, 300_000, 2 << 20)
MOST_GROWTH_BYTES_PER_HOUR, MOST_NEW_DESCRIPTORS, DEADLINE_S = 64 << 20, 8, 5.0


class Wayward(Files):
    """Files that fail, come late or move less than asked while `bad` is set."""

    def __init__(self) -> None:
        self.bad, self._random = False, np.random.default_rng(0)

    def preadv(self, fd: int, buffers: Any, offset: int) -> int:
        """Read, or not."""
        return int(super().preadv(fd, self._spoiled(buffers), offset))

    def pwritev(self, fd: int, buffers: Any, offset: int) -> int:
        """Write, or not."""
        return int(super().pwritev(fd, self._spoiled(buffers), offset))

    def _spoiled(self, buffers: Any) -> Any:
        fate = float(self._random.random()) if self.bad else 1.0
        if fate < 0.05:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fate < 0.15:
            time.sleep(2 * fate)
        if 0.15 < fate < 0.25 and len(buffers[0]) > 4096:
            return [buffers[0][:4096]]
        return buffers


def content(key: bytes, version: int, length: int) -> np.ndarray:
    """Bytes of a block; its first eight are the version."""
    seed = int.from_bytes(hashlib.sha256(key + version.to_bytes(8, "little")).digest()[:8], "little")
    block = np.random.Generator(np.random.SFC64(seed)).integers(0, 256, length, np.uint8)
    block[:8] = np.frombuffer(version.to_bytes(8, "little"), np.uint8)
    return block


class Worker:
    """One user of the store, with keys of its own, so that it knows what it may find.

    Parameters
    ----------
    name : str
        Its keys begin with it.
    seed : int
        Of what it does.

    Attributes
    ----------
    counts : Counter
        What happened.
    broken : list of str
        Promises that were not kept.
    """

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._random = name, np.random.default_rng(seed)
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self._last: dict[tuple[bytes, bytes], int] = {}  # the least version that may be served
        self._next = 1

    def step(self, store: block_store.BlockStore) -> None:
        """Do one thing."""
        number, tenant = int(self._random.integers(KEYS)), TENANTS[self._random.integers(len(TENANTS))]
        key, length = self._key(number), LENGTHS[number % len(LENGTHS)]
        mine, deed, begun = store.of_tenant(tenant), self._random.random(), time.monotonic()
        if deed < 0.45:
            self._get(mine, tenant, key, length)
        elif deed < 0.9:
            version, self._next = self._next, self._next + 1
            self.counts["puts"] += 1
            block = aligned(length)
            block[:] = content(tenant + key, version, length)
            parent = self._key(number - 1) if number % 10 else None
            if mine.put_many([key], [block], [parent], DEADLINE_S, lend=self._lends())[0]:
                self._last[tenant, key] = version
                self.counts["put bytes"] += length
        elif deed < 0.95:
            mine.pin(key, float(self._random.random()), DEADLINE_S)
        elif mine.delete(key, DEADLINE_S):
            self.counts["deleted"] += 1
            self._last[tenant, key] = self._next  # none of those before may come back
        if time.monotonic() - begun > DEADLINE_S + 5:
            self.broken.append(f"a call took {time.monotonic() - begun:.1f} s")

    def _key(self, number: int) -> bytes:
        return f"{self._name}-{number}".encode()

    def _lends(self) -> bool:
        return bool(self._random.random() < 0.5)

    def _get(self, mine: block_store.BlockStore, tenant: bytes, key: bytes, length: int) -> None:
        buffer = aligned(length)
        self.counts["gets"] += 1
        if not mine.get_many([key], [buffer], DEADLINE_S, lend=self._lends())[0]:
            return
        self.counts["served"] += 1
        self.counts["served bytes"] += length
        version = int.from_bytes(buffer[:8].tobytes(), "little")
        if not np.array_equal(buffer, content(tenant + key, version, length)):
            self.broken.append(f"wrong bytes under {key!r}")
        elif version < self._last.get((tenant, key), 0):
            self.broken.append(f"{key!r} fell back from version {self._last[tenant, key]} to {version}")


def work(worker: Worker, store: block_store.BlockStore, stop: threading.Event) -> None:
    """Do one thing after another until told otherwise. What the disk refuses is part of the test."""
    while not stop.is_set():
        try:
            worker.step(store)
        except KVPagerError:
            worker.counts["errors"] += 1


def other(folder: Path, seed: int) -> None:
    """The other process: works on the store till it is killed; a broken promise ends it with words."""
    with block_store.open(folder, deadline_s=DEADLINE_S) as store:
        worker = Worker(f"other{seed}", seed)
        while not worker.broken:
            try:
                worker.step(store)
            except KVPagerError:
                time.sleep(0.01)
    sys.exit(worker.broken[0])


def slabs(folder: Path) -> list[Path]:
    """Slab files; folders come and go meanwhile."""
    return [Path(where, name) for where, _, names in os.walk(folder) for name in names if name.startswith("slab-")]


def flip(folder: Path, rng: np.random.Generator) -> None:
    """Flip a bit in each of some slab files."""
    for slab in slabs(folder):
        if rng.random() < 0.3:
            with contextlib.suppress(FileNotFoundError), slab.open("r+b", buffering=0) as file:
                place = int(rng.integers(4096, slab.stat().st_size))
                old = os.pread(file.fileno(), 1, place)
                os.pwrite(file.fileno(), bytes([old[0] ^ 1 << int(rng.integers(8))]), place)


def resident_bytes() -> int:
    """Memory of this process, after what can be collected is."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """The whole of it.

    Parameters
    ----------
    folder : Path
        Of the store.
    seed : int
        Of everything.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self._seed = folder, seed
        self._rng, self._files = np.random.default_rng(seed), Wayward()
        self.workers = [Worker(f"w{number}", seed + number) for number in range(THREADS)]
        self.broken: list[str] = []
        self.samples: list[tuple[float, int, int]] = []
        self.most_bytes = self.flips = self.kills = 0
        self.totals: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Open, work, close, again and again."""
        begun = time.monotonic()
        while (left := seconds - (time.monotonic() - begun)) > 0 and not self.broken:
            self._once(min(left, 5 + 10 * float(self._rng.random())))
            self.samples.append((time.monotonic() - begun, resident_bytes(), len(os.listdir("/proc/self/fd"))))
        self.broken += [words for worker in self.workers for words in worker.broken]

    def _once(self, seconds: float) -> None:
        stop = threading.Event()
        store = block_store.open(
            self.folder, CAP, quotas={b"a": QUOTA}, deadline_s=60, quarantine_s=0.5, files=self._files, policy="s3-fifo"
        )
        self._child = self._start()
        threads = [threading.Thread(target=work, args=(worker, store, stop)) for worker in self.workers]
        for thread in threads:
            thread.start()
        try:
            self._disturb(time.monotonic() + seconds)
        finally:
            self._files.bad = False
            stop.set()
            for thread in threads:
                thread.join()
            self._kill()
        stats = store.stats()
        if stats["asked"] != stats["hits"] + stats["misses"] + stats["failed"]:
            self.broken.append(f"counts do not add up: {stats}")
        self.totals.update({name: stats[name] for name in ("hits", "evicted", "quarantined", "late", "io_errors", "stored")})
        store.close()

    def _disturb(self, until: float) -> None:
        """Look at the files, and do them harm, till then."""
        while time.monotonic() < until:
            self._measure()
            chance = self._rng.random()
            self._files.bad = chance < 0.1
            if chance > 0.95:
                flip(self.folder, self._rng)
                self.flips += 1
            if chance > 0.85:
                self._kill()
                self._child = self._start()
            time.sleep(0.25)

    def _measure(self) -> None:
        size = 0
        for slab in slabs(self.folder):
            with contextlib.suppress(FileNotFoundError):
                size += slab.stat().st_size
        self.most_bytes = max(self.most_bytes, size)
        if size > CAP:
            self.broken.append(f"{size:,} bytes of slabs, of {CAP:,}")

    def _start(self) -> subprocess.Popen[str]:
        self._seed += 1
        return subprocess.Popen(
            [sys.executable, __file__, "--other", str(self._seed), "--dir", str(self.folder)], stderr=subprocess.PIPE, text=True
        )

    def _kill(self) -> None:
        if self._child.poll() is not None:
            self.broken.append(f"the other process ended: {self._child.stderr.read().strip() if self._child.stderr else ''}")
        self._child.kill()
        self._child.wait()
        if self._child.stderr:
            self._child.stderr.close()
        self.kills += 1

    def slope(self) -> float:
        """Growth of memory over the second half, bytes an hour."""
        half = np.array(self.samples[len(self.samples) // 2 :], float)
        return float(np.polyfit(half[:, 0], half[:, 1], 1)[0]) * 3600 if len(half) > 2 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="A block store under mixed load, with evictions, restarts and faults.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--quick", action="store_true", help="one minute")
    parser.add_argument("--dir", type=Path, help="where the files go; else the system's place for temporary ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--other", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.other >= 0:
        other(options.dir, options.other)
    folder = Path(tempfile.mkdtemp(prefix="kvpager-soak-", dir=options.dir))
    minutes = 1.0 if options.quick else options.minutes
    soak = Soak(folder / "store", 1000 * options.seed)
    try:
        soak.run(60 * minutes)
    finally:
        shutil.rmtree(folder)
    counts = sum((worker.counts for worker in soak.workers), Counter())
    growth, first = soak.slope(), soak.samples[min(1, len(soak.samples) - 1)]
    more = max(sample[2] for sample in soak.samples[1:] or soak.samples) - first[2]
    if minutes >= 10 and growth > MOST_GROWTH_BYTES_PER_HOUR:
        soak.broken.append(f"memory grows by {growth:,.0f} bytes an hour")
    if more > MOST_NEW_DESCRIPTORS:
        soak.broken.append(f"{more} more descriptors than after the first restarts")
    print(f"{minutes:g} minutes, {len(soak.samples)} restarts, {soak.kills} kills, {soak.flips} times flipped bits")
    print(f"done: {dict(counts)}; store: {dict(soak.totals)}")
    print(f"most on disk {soak.most_bytes:,} of {CAP:,} bytes; memory {first[1] >> 20} MiB, then {soak.samples[-1][1] >> 20} MiB")
    print(f"growth over the second half {growth / 2**20:.1f} MiB an hour; descriptors {first[2]}, at most {more} more")
    print("\n".join(soak.broken[:20]) or "no promise was broken")
    document = {
        "question": "growth, cap and wrong bytes under mixed load with faults", "machine": this_machine(),
        "versions": versions_of(["numpy", "xxhash"]), "date": now(), "evidence": "measured", "minutes": minutes,
        "broken": soak.broken, "counts": dict(counts), "store": dict(soak.totals), "most_slab_bytes": soak.most_bytes,
        "cap_bytes": CAP, "growth_bytes_per_hour": growth, "more_descriptors": more,
        "samples": [[round(at, 1), memory, fds] for at, memory, fds in soak.samples],
    }  # fmt: skip
    print(json.dumps(document))
    sys.exit(1 if soak.broken else 0)


if __name__ == "__main__":
    main()
