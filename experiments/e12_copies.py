"""Whether a block is large enough to hide the fixed cost of a transfer: in one piece, and in 160 pieces of 32 KiB.

In memory, and on the disk below the work folder past the page cache. A GPU's copies are not measured here: this needs none.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.study import Interval, Study, interval
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.hardware.disk import Scratch

CLAIMS = ("blk-overhead", "fetch-bw-only")
BLOCK_BYTES, PIECE_BYTES, LEAST_BYTES = 5 << 20, 32 << 10, 4 << 10
PIECES = BLOCK_BYTES // PIECE_BYTES
DEPTHS = (1, 16)
ARENA_BYTES = 512 << 20
MEASURED = (Evidence.MEASURED,)


def run(study: Study) -> None:
    """Time both layouts in turns, so that what else the machine does meets both alike."""
    repeats = 6 if study.quick else 20
    memory = study.once(f"memory, {repeats} repeats", partial(_memory, repeats))
    disk = study.once(f"disk, {repeats} repeats", partial(_disk, study, repeats))
    ratios = {(row["where"], row["depth"]): row for row in _ratios([*memory, *disk])}
    told = "; ".join(
        f"{where}{f', {depth} in flight' if where == 'disk' else ''}: {row['ratio'].value:.2f} times as long as in one piece"
        for (where, depth), row in ratios.items()
    )
    share = 100 * _fixed_share(disk)
    alone, together = ratios["disk", 1]["ratio"], ratios["disk", DEPTHS[-1]]["ratio"]
    load = statistics.median(row["load"] for row in disk)
    fits, hidden = share < 10, alone.high < 1.5
    study.find(
        "blk-overhead",
        SUPPORTED if fits and hidden else INCONCLUSIVE if fits else CONTRADICTED,
        f"in one piece of 5 MiB the fixed cost of a disk read is {share:.1f} % of its time, so that a block hides it; in {PIECES} "
        f"pieces of 32 KiB, as engines lay a block of 70B out, it takes: {told}. It depends on the layout and on how many "
        f"transfers are in flight (this machine's virtual disk and memory, {os.cpu_count()} cores under a load of {load:.0f}; no GPU)",
        value=alone.value, low=alone.low, high=alone.high, unit="x", labels=MEASURED,
    )  # fmt: skip
    study.sign("time in pieces − time in one piece, disk, one at a time", Interval(*(end - 1 for end in alone)))
    study.find(
        "fetch-bw-only",
        CONTRADICTED if alone.low > 1.1 else SUPPORTED if alone.high < 1.1 else INCONCLUSIVE,
        f"the bandwidth of whole blocks foretells {100 / alone.value:.0f} % of the time that the same bytes take in pieces, one "
        f"after another from disk, and {100 / together.value:.0f} % with {DEPTHS[-1]} in flight: the number of transfers and "
        "how many overlap belong into the time of a fetch",
        value=100 / alone.value, low=100 / alone.high, high=100 / alone.low, unit="%", labels=MEASURED,
    )  # fmt: skip


def _mean_ratio(each: list[float]) -> Interval:
    """Geometric mean of ratios, with its interval."""
    return Interval(*np.exp(interval(np.log(each))).tolist())


def _time(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _memory(repeats: int) -> list[dict[str, Any]]:
    """Copies from random places of an arena larger than caches; a repeat is the median of seven."""
    rng = np.random.default_rng(0)
    arena = np.ones(ARENA_BYTES, np.uint8)
    pieces, target = arena.reshape(-1, PIECE_BYTES), np.ones((PIECES, PIECE_BYTES), np.uint8)

    def whole() -> float:
        start = int(rng.integers(0, ARENA_BYTES // BLOCK_BYTES)) * BLOCK_BYTES
        return _time(lambda: np.copyto(target.reshape(-1), arena[start : start + BLOCK_BYTES]))

    def gather() -> float:
        places = rng.integers(0, len(pieces), PIECES)
        return _time(lambda: np.take(pieces, places, axis=0, out=target, mode="clip"))

    def calls() -> float:
        places = rng.integers(0, len(pieces), PIECES).tolist()
        return _time(lambda: [np.copyto(target[i], pieces[place]) for i, place in enumerate(places)])

    ways = {"memory": (whole, gather), "memory, a call a piece": (whole, calls)}
    rows = []
    for repeat in range(repeats):
        for where, (one, many) in ways.items():
            for size, way in ((BLOCK_BYTES, one), (PIECE_BYTES, many)):
                seconds = statistics.median(way() for _ in range(7))
                rows.append({"where": where, "repeat": repeat, "size_bytes": size, "depth": 1, "block_s": seconds})
    return rows


def _disk(study: Study, repeats: int) -> list[dict[str, Any]]:
    """Reads from random places of a scratch file; `block_s` is a block's share of the median read's time: other work's stalls stay out."""
    rows: list[dict[str, Any]] = []
    with Scratch(study.work, ARENA_BYTES) as scratch:
        scratch.fill(time.perf_counter() + 60)
        for repeat in range(repeats):
            for size in (BLOCK_BYTES, PIECE_BYTES, LEAST_BYTES):
                for depth in DEPTHS:
                    found = scratch.measure(size, depth, 0.3, write=False)
                    row = {
                        "where": "disk",
                        "repeat": repeat,
                        "size_bytes": size,
                        "depth": depth,
                        "operation_s": found.operation_s,
                    }
                    row |= {"bytes_per_s": found.median, "direct": scratch.direct, "load": os.getloadavg()[0]}
                    rows.append(row | {"block_s": found.operation_s * BLOCK_BYTES / size / depth})
    return rows


def _ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time in pieces over time in one piece, repeat by repeat."""
    found = []
    for where, depth in dict.fromkeys((row["where"], row["depth"]) for row in rows):
        of = {
            (row["repeat"], row["size_bytes"]): row["block_s"] for row in rows if (row["where"], row["depth"]) == (where, depth)
        }
        each = [of[repeat, PIECE_BYTES] / of[repeat, BLOCK_BYTES] for repeat, size in of if size == BLOCK_BYTES]
        found.append({"where": where, "depth": depth, "ratio": _mean_ratio(each)})
    return found


def _fixed_share(disk: list[dict[str, Any]]) -> float:
    """Fixed cost of one read as a share of a block's time: a read of 4 KiB, less its bytes at the block's rate."""
    once = {
        size: statistics.median(row["operation_s"] for row in disk if (row["size_bytes"], row["depth"]) == (size, 1))
        for size in (BLOCK_BYTES, LEAST_BYTES)
    }
    return (once[LEAST_BYTES] - once[BLOCK_BYTES] * LEAST_BYTES / BLOCK_BYTES) / once[BLOCK_BYTES]
