"""The backing store against the bare disk.

Question
    What share of the raw O_DIRECT rate of the same shape and thread count does the store keep, with checksums on?
Method
    Records of 64 KiB, 1 MiB and 5 MiB, 8 parts each, in slots that are neighbours, in memory on huge pages. Four threads on
    both sides. Raw: each thread moves a record's payload by one ``preadv`` or ``pwritev`` at a random place of a
    preallocated, written file. Store: tickets of up to 32 records from random places of its slabs (get), or of new ones into
    freed places (put), each a header page longer than the raw side's. The two take turns in short windows, in random order;
    the ratio is the median over the pairs of neighbouring windows. Puts are as fast as the device takes them into its own
    cache; neither side flushes. Goals: get 0.93, put 0.85.
Command
    python benchmarks/store.py [--quick] [--dir DIR]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.slab import SlabStore
from kvpager.slab.files import Files
from kvpager.tiers.arena import Arena
from kvpager.traces.provenance import now, this_machine, versions_of

GOALS = {"get": 0.93, "put": 0.85}
THREADS, PARTS = 4, 8
KIB, MIB = 1 << 10, 1 << 20


class Raw:
    """Threads that read or write one file at random places, a record's payload at a time."""

    def __init__(self, folder: Path, record_bytes: int, file_bytes: int) -> None:
        self.record_bytes, self.places = record_bytes, file_bytes // record_bytes
        path = folder / "raw"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, file_bytes)
        os.close(fd)
        self.direct = Files().direct_works(path)
        self.fd = os.open(path, os.O_RDWR | (os.O_DIRECT if self.direct else 0))
        self.arena = Arena(max(64 * MIB // record_bytes, THREADS), record_bytes)
        self.arena.memory[:] = np.random.default_rng(0).integers(0, 256, self.arena.memory.shape, np.uint8)
        for place in range(self.places):
            os.pwritev(self.fd, [self.arena.memory[0].data], place * record_bytes)

    def window(self, kind: str, seconds: float, seed: int) -> float:
        """Bytes a second."""
        moved = [0] * THREADS
        call = os.preadv if kind == "get" else os.pwritev
        start = time.perf_counter()

        def work(number: int) -> None:
            places = np.random.default_rng(seed * THREADS + number).integers(0, self.places, 1 << 14).tolist()
            rooms = [self.arena.memory[slot].data for slot in range(number, len(self.arena.memory), THREADS)]
            for count, place in enumerate(places):
                if time.perf_counter() - start > seconds:
                    return
                moved[number] += call(self.fd, [rooms[count % len(rooms)]], place * self.record_bytes)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(moved) / (time.perf_counter() - start)

    def close(self) -> None:
        """Close the file and give the memory back."""
        os.close(self.fd)
        self.arena.close()


class Store:
    """A store with as many records in it, and an arena to move them from and to."""

    def __init__(self, folder: Path, record_bytes: int, file_bytes: int) -> None:
        part_bytes = record_bytes // PARTS
        self.records = file_bytes // record_bytes
        self.batch = min(max(8 * MIB // record_bytes, 2), 32)  # records a ticket: a layer of a decode step asks for many
        self.deep = 2 * THREADS  # tickets under way
        self.store = SlabStore(
            folder / "store", parts=PARTS, part_bytes=part_bytes, layers=1, fingerprint="benchmark", slab_bytes=256 * MIB,
            capacity_bytes=2 * file_bytes + 512 * MIB, queue_bytes=256 * MIB,
        )  # fmt: skip
        self.arena = Arena(self.deep * self.batch * PARTS, part_bytes)
        self.arena.memory[:] = np.random.default_rng(0).integers(0, 256, self.arena.memory.shape, np.uint8)
        self.slots = [
            np.arange(first, first + self.batch * PARTS, dtype=np.int32)
            for first in range(0, len(self.arena.memory), self.batch * PARTS)
        ]
        self.keys: deque[Any] = deque()
        while len(self.keys) * self.batch < self.records:
            keys = self.store.new_keys(self.batch)
            self.store.wait([self._put(keys, self.slots[0])], 60)
            self.keys.append(keys)
        self.store.sync()

    def window(self, kind: str, seconds: float, seed: int) -> float:
        """Bytes of payload a second."""
        rng = np.random.default_rng(seed)
        order = np.concatenate([*self.keys])
        start = time.perf_counter()
        moved, under_way, free = 0, {}, list(self.slots)
        while time.perf_counter() - start < seconds or under_way:
            while free and time.perf_counter() - start < seconds:
                slots = free.pop()
                if kind == "get":
                    ticket = self._get(rng.choice(order, self.batch), slots)
                else:
                    old, new = self.keys.popleft(), self.store.new_keys(self.batch)
                    self.store.forget(old)
                    ticket = self._put(new, slots)
                    self.keys.append(new)
                under_way[ticket] = slots
            answers = self.store.poll() or self.store.wait([min(under_way)], 1.0)
            for ticket, ok in answers:
                if not ok.all():
                    raise SystemExit("the store did not serve what it holds")
                free.append(under_way.pop(ticket))
                moved += self.batch * PARTS * self.arena.memory.shape[1]
        return moved / (time.perf_counter() - start)

    def _get(self, keys: Any, slots: Any) -> int:
        units = np.arange(self.batch * PARTS)
        layers = np.zeros(len(units), np.int32)
        return self.store.read(keys[units // PARTS], layers, (units % PARTS).astype(np.int32), self.arena.memory, slots)

    def _put(self, keys: Any, slots: Any) -> int:
        return self.store.write(keys, np.zeros(self.batch, np.int32), self.arena.memory, slots.reshape(-1, PARTS))

    def close(self) -> None:
        """Close the store and give the memory back."""
        self.store.close()
        self.arena.close()


def measure(folder: Path, record_bytes: int, file_bytes: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Take turns between raw and store, and put the medians of each kind together."""
    sides = {"raw": Raw(folder, record_bytes, file_bytes), "store": Store(folder, record_bytes, file_bytes)}
    rng = np.random.default_rng(record_bytes)
    rows = []
    try:
        for kind in ("get", "put"):
            rates: dict[str, list[float]] = {"raw": [], "store": []}
            for number in range(rounds + 1):
                for name in rng.permutation([*sides]).tolist():
                    rates[name].append(sides[name].window(kind, seconds, number))
            raw, store = (np.array(rates[name][1:]) for name in ("raw", "store"))
            rows.append(
                {
                    "kind": kind, "record_bytes": record_bytes, "ratio": float(np.median(store / raw)), "goal": GOALS[kind],
                    "ratios": (store / raw).round(3).tolist(), "raw_bytes_per_s": float(np.median(raw)),
                    "store_bytes_per_s": float(np.median(store)), "direct": sides["raw"].direct,
                }
            )  # fmt: skip
    finally:
        for side in sides.values():
            side.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The backing store against the bare disk.")
    parser.add_argument("--quick", action="store_true", help="short windows on small files")
    parser.add_argument("--dir", type=Path, help="where the files go; else the system's place for temporary ones")
    options = parser.parse_args()
    file_bytes, rounds, seconds = (256 * MIB, 5, 0.15) if options.quick else (1024 * MIB, 15, 0.4)
    results = []
    for record_bytes in (64 * KIB, MIB, 5 * MIB):
        folder = Path(tempfile.mkdtemp(prefix="kvpager-store-", dir=options.dir))
        try:
            rows = measure(folder, record_bytes, file_bytes, rounds, seconds)
        finally:
            shutil.rmtree(folder)
        results += rows
        for row in rows:
            print(
                f"{row['kind']} {record_bytes // KIB:>5} KiB: {row['ratio']:.2f} of raw (goal {row['goal']}), "
                f"{row['store_bytes_per_s'] / 1e9:.2f} of {row['raw_bytes_per_s'] / 1e9:.2f} GB/s"
            )
    document = {
        "question": "share of the raw O_DIRECT rate that the backing store keeps, checksums on", "machine": this_machine(),
        "versions": versions_of(["numpy", "xxhash"]), "date": now(), "evidence": "measured", "goals": GOALS, "results": results,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
