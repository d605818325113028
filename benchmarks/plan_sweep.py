"""Configurations a second of the planner's sweep.

Question
    Is ``kvpager plan --sweep`` fast enough to explore with? Goal: 100,000 configurations a second.
Method
    Random contexts, users and read fractions on four systems of different strategies, one process; median of repeats.
Command
    OMP_NUM_THREADS=1 python benchmarks/plan_sweep.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np

from kvpager.hardware import load
from kvpager.models import resolve
from kvpager.plan.sweeping import sweep
from kvpager.traces.provenance import this_machine, versions_of

SYSTEMS = ("note-000-cxl", "b200-host-cxl", "b200-offload", "b200x4-tp")


def rate(name: str, points: int, repeats: int) -> float:
    """Configurations a second on one system, median of `repeats`."""
    facts, system = resolve("llama-3.1-70b"), load().systems[name]
    random = np.random.default_rng(0)
    contexts, users = random.integers(1024, 131_072, points), random.integers(1, 64, points)
    read = random.uniform(0.01, 1.0, points)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        sweep(facts, system, contexts, users, read)
        times.append(time.perf_counter() - start)
    return points / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer points")
    quick = parser.parse_args().quick
    points, repeats = (50_000, 3) if quick else (500_000, 7)
    results = {name: round(rate(name, points, repeats)) for name in SYSTEMS}
    for name, value in results.items():
        print(f"{name:16} {value:>12,} configurations/s")
    document = {
        "question": "configurations a second of the planner's sweep, one process",
        "machine": this_machine(),
        "versions": versions_of(["numpy"]),
        "results": {"points": points, "repeats": repeats, "configurations_per_s": results, "least": min(results.values())},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
