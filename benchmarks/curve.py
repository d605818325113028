"""The whole prefix-LRU curve of a public trace: one pass of ours against points of kvcache-simulator.

Question
    How long does the exact curve take, at every capacity, and how long do fourteen points take the peer?
Method
    Mooncake's conversation trace, in memory as each program has it; files are read and loops compiled before. Ours: depths of
    all accesses, then hit tokens of every capacity. kvcache-simulator: its leaf-LRU at fourteen sizes, in its C++ backend, which
    gets the trace in files. In turn, wall clock, medians; hit tokens of the second half must agree at each size.
Command
    OMP_NUM_THREADS=1 KVPAGER_TRACES=... python benchmarks/curve.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from kvcache_sim import load_models_data
from kvcache_sim.simulator import run_sweep
from kvcache_sim.trace import parse_trace_file

from kvpager.replay.distances import hits_by_capacity, prefix_depths
from kvpager.traces.formats import load_requests
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.requests import RequestTrace

BLOCK_BYTES = 512 * 327_680  # of Llama-3.1-70B
SIZES = [2**power for power in range(7, 18)] + [1_638, 6_553, 26_214]


def curve(trace: RequestTrace) -> Any:
    """Hit tokens of the second half at every capacity."""
    first = len(trace) // 2
    begin = trace.starts[first]
    depths = prefix_depths(trace.blocks, trace.starts, trace.distinct)
    counts = np.diff(trace.starts)[first:]
    lacking = trace.block_size * counts - trace.input_tokens[first:]
    whole = hits_by_capacity(depths[begin:])
    return trace.block_size * whole, hits_by_capacity(depths[trace.starts[first + 1 :] - 1], lacking)


def at(found: Any, capacity: int) -> int:
    whole, lacking = (one[min(capacity, len(one) - 1)] for one in found)
    return int(whole - lacking)


def timed(call: Any) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = call()
    return time.perf_counter() - begun, found


def main() -> None:
    parser = argparse.ArgumentParser(description="The whole prefix-LRU curve, against points of kvcache-simulator.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    folder = os.environ.get("KVPAGER_TRACES", str(Path(__file__).resolve().parents[2] / "shared" / "traces"))
    path = Path(folder) / "mooncake_conversation_trace.jsonl.gz"
    if not path.is_file():
        raise SystemExit(f"{path.name} is not in {path.parent}: set KVPAGER_TRACES to the folder with the public traces")
    mine, theirs, models = load_requests(path), parse_trace_file(path, block_size=512), load_models_data()

    def peer() -> Any:
        budgets = [size * BLOCK_BYTES / 2**30 + 1e-6 for size in SIZES]
        return run_sweep(theirs, model_id="llama-3.1-70b", budgets_gib=budgets, policies=["lru"], models_data=models)

    curve(mine), peer()  # compiles
    pairs, differing = [], 0
    for _ in range(rounds):
        (my, found), (their, points) = timed(lambda: curve(mine)), timed(peer)
        pairs.append((my, their))
    for point in points["points"]:
        differing += at(found, point["cacheBlocks"]) != point["results"]["lru"]["hitTokens"]
    if differing:
        raise SystemExit(f"{differing} of {len(points['points'])} points differ")
    my, their = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"{their / my:.0f} x: {len(points['points'])} points of kvcache-simulator {their * 1e3:.0f} ms, all {mine.distinct:,} "
        f"sizes of ours {my * 1e3:.1f} ms (goal 50 ms); hit tokens equal"
    )
    document = {
        "question": "the whole prefix-LRU curve of the conversation trace, against fourteen points of kvcache-simulator",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "numba", "kvcache-simulator"]),
        "date": now(),
        "evidence": "measured",
        "results": {"ratio": their / my, "curve_s": my, "goal_s": 0.05, "kvcache_simulator_s": their, "pairs_s": pairs},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
