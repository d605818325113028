"""Memory that a replay of block accesses takes at its peak: our compiled loops against libCacheSim.

Question
    How much does the resident memory of a process grow, at its peak, from an open trace file to the end of a replay?
Method
    Zipf's accesses of `benchmarks/replay_requests.py`, a thousand a request, in a cache of a tenth of the distinct blocks. Each
    replay is a process of its own, which first replays a thousand accesses (imports, compiling), then has its peak reset, and
    replays them all: ours from our Parquet file, libCacheSim from its oracleGeneral file, which it maps.
Command
    OMP_NUM_THREADS=1 python benchmarks/replay_memory.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from replay_requests import POLICIES, theirs
from replay_requests import zipf as in_one

from kvpager.policies.requests.base import REQUEST_POLICIES
from kvpager.registry import configure
from kvpager.replay.requests import Case, replay_requests
from kvpager.traces.formats.oracle_general import write_oracle_general
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.requests import RequestTrace
from kvpager.traces.requeststore import read_requests, write_requests


def zipf(accesses: int) -> RequestTrace:
    """Those accesses, a thousand in a request."""
    starts = np.arange(0, accesses + 1, 1000)
    none, zeros = np.full(len(starts) - 1, -1), np.zeros(len(starts) - 1, np.int64)
    blocks = in_one(accesses).blocks
    tokens = np.full(len(none), 1000)
    return RequestTrace(zeros.astype(np.float64), none, none, tokens, zeros, zeros.astype(np.int32), starts, blocks, 1, False)


def kilobytes(name: str) -> int:
    """A line of this process's status."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


def grown(call: Any) -> tuple[int, int]:
    """Bytes that the resident memory grows at its peak while `call` runs, and those of mapped files afterwards."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before, mapped = kilobytes("VmRSS"), kilobytes("RssFile")
    kept = call()
    peak, files = kilobytes("VmHWM"), kilobytes("RssFile")
    del kept
    return 1024 * (peak - before), 1024 * (files - mapped)


def mine(policy: str, folder: str, capacity: int, queue: Any) -> None:
    few = read_requests(Path(folder) / "few.parquet")
    replay_requests(few, [Case(policy, 10)], optimum=False, threads=1)
    configure(REQUEST_POLICIES, policy)

    def call() -> Any:
        trace = read_requests(Path(folder) / "zipf.parquet")
        return trace, replay_requests(trace, [Case(policy, capacity)], optimum=False, threads=1)

    queue.put(grown(call))


def other(policy: str, folder: str, capacity: int, queue: Any) -> None:
    theirs(POLICIES[policy], Path(folder) / "few.oracleGeneral", 10)
    queue.put(grown(lambda: theirs(POLICIES[policy], Path(folder) / "zipf.oracleGeneral", capacity)))


def alone(target: Any, *arguments: Any) -> tuple[int, int]:
    """Result of a fresh process."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=target, args=(*arguments, queue))
    process.start()
    found: tuple[int, int] = queue.get(timeout=600)
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of a replay, against libCacheSim.")
    parser.add_argument("--quick", action="store_true", help="a million accesses")
    trace = zipf(1_000_000 if parser.parse_args().quick else 10_000_000)
    few, capacity, rows = zipf(1000), trace.distinct // 10, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, one in (("zipf", trace), ("few", few)):
            write_requests(Path(folder) / f"{name}.parquet", one)
            write_oracle_general(Path(folder) / f"{name}.oracleGeneral", one)
        for policy in POLICIES:
            (my, my_files), (their, their_files) = (alone(who, policy, folder, capacity) for who in (mine, other))
            rows[policy] = {
                "ratio": their / my, "bytes": my, "libcachesim_bytes": their, "mapped_bytes": my_files,
                "libcachesim_mapped_bytes": their_files,
            }  # fmt: skip
            print(
                f"{policy:8} {their / my:5.2f} x our memory: {their / 2**20:6.0f} MiB ({their_files / 2**20:.0f} of its file) "
                f"against {my / 2**20:6.0f} MiB, {my / len(trace.blocks):.1f} B an access",
                flush=True,
            )
    document = {
        "question": "peak memory of a replay, libCacheSim's over ours",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "numba", "pyarrow", "libcachesim"]),
        "date": now(),
        "command": "python benchmarks/replay_memory.py",
        "accesses": len(trace.blocks), "distinct": trace.distinct, "capacity_blocks": capacity,
        "bits_of_a_table": int(math.log2(capacity)) + 1,
        "results": rows,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
