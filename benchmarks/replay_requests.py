"""Replay of block accesses: our compiled loops against libCacheSim.

Question
    How many accesses a second of processor time does each policy replay, against libCacheSim in the same run?
Method
    Two traces of unit-size blocks: Zipf (exponent 1 over a million ids, ten million accesses, seed 42) in a cache of a tenth of
    its distinct blocks, and Mooncake's conversation trace, where it is at hand, in one of 6,553 blocks. libCacheSim reads a
    binary file of 24 bytes an access; its table is made for the cache's size (``hashpower``), which is faster than its default.
    We read ids in memory. Both in turn, round by round, one thread, processor time, medians; loops are compiled before.
    Belady's pass for next uses is in our time; libCacheSim finds them in its file. Hits must agree.
Command
    OMP_NUM_THREADS=1 python benchmarks/replay_requests.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np

from kvpager.policies.requests.base import REQUEST_POLICIES
from kvpager.registry import configure
from kvpager.traces.formats import load_requests
from kvpager.traces.formats.oracle_general import write_oracle_general
from kvpager.traces.interning import intern
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.requests import RequestTrace

POLICIES = {
    "fifo": libcachesim.FIFO, "lru": libcachesim.LRU, "arc": libcachesim.ARC, "s3fifo": libcachesim.S3FIFO,
    "sieve": libcachesim.Sieve, "belady": libcachesim.Belady,
}  # fmt: skip
GOALS = {"zipf": {"arc": 6.0, "belady": 6.0}, "conversation": {"belady": 2.0}}
GOAL = {"zipf": 10.0, "conversation": 5.0}


def zipf(accesses: int) -> RequestTrace:
    """Ids of a million, the n-th as popular as 1/n; all of them one request's, since only blocks count here."""
    shares = np.cumsum(1.0 / np.arange(1, 1_000_001))
    drawn = np.searchsorted(shares, np.random.default_rng(42).random(accesses) * shares[-1])
    blocks, _ = intern(drawn.astype(np.uint64))
    none, starts = np.full(1, -1, np.int64), np.array([0, accesses])
    return RequestTrace(
        np.zeros(1), none, none, starts[1:], np.zeros(1, np.int64), np.zeros(1, np.int32), starts, blocks, 1, False
    )


def conversation() -> RequestTrace | None:
    """Mooncake's trace, or None."""
    folder = os.environ.get("KVPAGER_TRACES", str(Path(__file__).resolve().parents[2] / "shared" / "traces"))
    path = Path(folder) / "mooncake_conversation_trace.jsonl.gz"
    if not path.is_file():
        print(f"{path.name} is not in {path.parent}: set KVPAGER_TRACES; only Zipf is measured")
        return None
    return load_requests(path)


def theirs(oracle: Any, path: Path, capacity: int) -> tuple[float, float]:
    """Seconds and missed share."""
    options = libcachesim.ReaderInitParam(ignore_obj_size=True)
    reader = libcachesim.TraceReader(
        trace=str(path), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE, reader_init_params=options
    )
    cache = oracle(cache_size=capacity, hashpower=int(math.log2(capacity)) + 1)
    begun = time.process_time()
    missed, _ = cache.process_trace(reader)
    return time.process_time() - begun, missed


def ours(policy: str, blocks: Any, distinct: int, capacity: int, hit: Any) -> float:
    """Seconds."""
    replay = configure(REQUEST_POLICIES, policy).replay
    begun = time.process_time()
    replay(blocks, distinct, capacity, hit)
    return time.process_time() - begun


def measured(name: str, trace: RequestTrace, capacity: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Compare all policies on one trace."""
    blocks, distinct, rows = trace.blocks, trace.distinct, {}
    path, hit = folder / f"{name}.oracleGeneral", np.zeros(len(blocks), np.bool_)
    write_oracle_general(path, trace)
    for policy, oracle in POLICIES.items():
        ours(policy, blocks[:1000], distinct, 10, hit[:1000])  # compiles
        pairs = []
        for _ in range(rounds):
            mine = ours(policy, blocks, distinct, capacity, hit)
            their, missed = theirs(oracle, path, capacity)
            pairs.append((mine, their))
        hits, expected = int(hit.sum()), round((1 - missed) * len(blocks))
        if hits != expected:
            raise SystemExit(f"{name}, {policy}: {hits} hits, libCacheSim has {expected}")
        mine, their = (statistics.median(times) for times in zip(*pairs, strict=True))
        goal = GOALS.get(name, {}).get(policy, GOAL[name])
        rows[policy] = {"ratio": their / mine, "goal": goal, "hits": hits, "s": mine, "libcachesim_s": their, "pairs_s": pairs}
        print(
            f"{name:13}{policy:8} {their / mine:5.1f} x libCacheSim (goal {goal:g}): {len(blocks) / mine / 1e6:6.1f} of "
            f"{len(blocks) / their / 1e6:5.1f} M accesses a CPU-second, {hits:,} hits",
            flush=True,
        )
    return {"accesses": len(blocks), "distinct": distinct, "capacity_blocks": capacity, "policies": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay of block accesses against libCacheSim.")
    parser.add_argument("--quick", action="store_true", help="fewer accesses and rounds")
    quick = parser.parse_args().quick
    traces = {"zipf": zipf(1_000_000 if quick else 10_000_000), "conversation": conversation()}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, trace in traces.items():
            if trace is not None:
                capacity = 6_553 if name == "conversation" else trace.distinct // 10
                found[name] = measured(name, trace, capacity, 3 if quick else 5, Path(folder))
    ratios = {f"{name}/{policy}": row["ratio"] for name, one in found.items() for policy, row in one["policies"].items()}
    document = {
        "question": "accesses a CPU-second that each policy replays, against libCacheSim",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "numba", "libcachesim"]),
        "date": now(),
        "evidence": "measured",
        "ratio_to_libcachesim": ratios,
        "results": found,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
