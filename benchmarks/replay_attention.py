"""The cost of replaying one policy.

Question
    How long does one policy take over 128 steps × 90 KV heads × 508 blocks on one core?
Method
    A recording (made up by default: 30 layers × 3 KV heads, 8000 tokens of context; ``--trace`` takes a real one) is
    turned into a stream once; that time is told apart. Then each policy is replayed at each size, `Replay` made and run,
    several times. The figure is the median processor time of the process, not wall clock: other work on the machine
    disturbs it less, though shared caches and clocks still can. A tick is one (step, layer).
    The floor, measured in the same process: what no exact replay of a score policy can leave out, done in bare NumPy with
    arrays of the same sizes — gather the keys of what is resident and was just read, partition them, mark the best. No
    bookkeeping, no scores, no counts. Goal: under 2 s for each policy and size, which is 521 µs a tick.
Command
    OMP_NUM_THREADS=1 python benchmarks/replay_attention.py [--quick] [--trace PATH] [--runs N]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.policies import make_policy
from kvpager.replay.attention import Replay, capacity_units
from kvpager.replay.stream import Stream, make_stream
from kvpager.selectors import SELECTORS
from kvpager.testing.recordings import synthetic_recording
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.recording import Recording

GOAL_US_PER_TICK = 2e6 / (128 * 30)
POLICIES = ("lru", "ema", "blend", "belady")
SIZES = (0.0684, 0.10, 0.25)


def cpu_s(work: Callable[[], Any], runs: int) -> list[float]:
    """Processor times of `work`, in seconds, ascending."""
    times = []
    for _ in range(runs):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return sorted(times)


def floor_s(stream: Stream, units: int, misses: int, runs: int) -> float:
    """Time of gather, partition and mark, for as many ticks and candidates as a replay with so many misses must place."""
    rng = np.random.default_rng(0)
    ticks = min(misses, len(stream.asks))
    staged = misses // max(ticks, 1)
    scores = rng.random(stream.units)
    candidates = rng.permutation(stream.units)[: units + staged].astype(np.int32)

    def work() -> None:
        for _ in range(ticks):
            keys = scores[candidates]
            np.flatnonzero(keys > np.partition(keys, staged)[staged])

    return statistics.median(cpu_s(work, runs))


def measure(stream: Stream, policy: str, hbm_fraction: float, runs: int) -> dict[str, Any]:
    """Time one policy at one size, in the global pool."""
    units = capacity_units(stream, hbm_fraction, "global")
    counts = Replay(stream, make_policy(policy), units, warmup=0).run()
    misses = counts.unit_accesses - counts.unit_hits
    times = cpu_s(lambda: Replay(stream, make_policy(policy), units).run(), runs)
    replay_s, least_s = statistics.median(times), floor_s(stream, units, misses, runs)
    return {
        "policy": policy,
        "hbm_fraction": hbm_fraction,
        "capacity_units": units,
        "misses": misses,
        "cpu_s": replay_s,
        "cpu_s_runs": times,
        "us_per_tick": 1e6 * replay_s / len(stream.asks),
        "floor_s": least_s,
        "ratio_to_floor": replay_s / least_s if misses else None,
        "block_hit_ratio": counts.hits / counts.accesses,
    }


def recording_of(options: argparse.Namespace) -> Recording:
    if options.trace is not None:
        from kvpager.traces.attention import read_recording

        return read_recording(options.trace)
    context_tokens, steps = (2016, 32) if options.quick else (8000, 128)
    return synthetic_recording(num_layers=30, num_kv_heads=3, group=3, context_tokens=context_tokens, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of replaying one policy.")
    parser.add_argument("--quick", action="store_true", help="a short recording, one size, one run")
    parser.add_argument("--trace", type=Path, help="a recording of kvpager record")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    runs = 1 if options.quick else options.runs
    recording = recording_of(options)
    header = recording.header
    selector = SELECTORS["topp_mass"]()
    (stream_s,) = cpu_s(lambda: make_stream(recording, selector), 1)
    stream = make_stream(recording, selector)
    shape = f"{recording.steps} steps × {len(header.layers) * header.num_kv_heads} KV heads × {recording.blocks} blocks"
    read = sum(len(ask.units) for ask in stream.asks) / len(stream.asks)
    print(
        f"{shape} ({header.model}); {len(stream.asks)} ticks that ask for {read:.0f} units each; stream made in {stream_s:.2f} s"
    )
    print(f"{'policy':8}{'HBM':>9}{'CPU s':>8}{'µs a tick':>11}{'floor s':>9}{'ratio':>7}{'block hits':>12}")
    results = []
    for hbm_fraction in SIZES[1:2] if options.quick else SIZES:
        for policy in POLICIES:
            row = measure(stream, policy, hbm_fraction, runs)
            results.append(row)
            print(f"{policy:8}{hbm_fraction:9.2%}{row['cpu_s']:8.2f}{row['us_per_tick']:11.0f}{row['floor_s']:9.2f}", end="")
            print(f"{row['ratio_to_floor'] or float('nan'):7.1f}{row['block_hit_ratio']:12.1%}")
    slowest = max(row["us_per_tick"] for row in results)
    print(f"slowest {slowest:.0f} µs a tick (goal < {GOAL_US_PER_TICK:.0f}, which is 2 s for 128 steps of 30 layers)")
    document = {
        "question": f"processor time of one policy over {shape}",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "zarr"]),
        "date": now(),
        "evidence": "measured",
        "clock": "processor time of the process",
        "recording": header.model,
        "ticks": len(stream.asks),
        "asked_units_per_tick": read,
        "stream_s": stream_s,
        "goal_us_per_tick": GOAL_US_PER_TICK,
        "goal_met": slowest < GOAL_US_PER_TICK,
        "results": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
