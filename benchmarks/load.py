"""Loading a request trace: our Parquet against JSON lines, and block ids to dense numbers against other ways.

Question
    How many block ids a second of processor time come from a Parquet file, checked and ready to replay, and from JSON lines?
    How many ids of any value does interning number?
Method
    A made-up trace of chat sessions whose turns repeat all that was said (ten million ids, one in five new), written once as our
    Parquet and once as Mooncake's JSON lines. Parquet is read by us, with checksums and all checks of a trace, and by bare
    pyarrow, without either; the lines by our converter, by orjson and by json, these two with arrays made and a dict that
    numbers ids, but without checks. Interning: the trace's own ids; Zipf (exponent 1 over a million ids) as hashes of 64 bits;
    and hashes that are all distinct, the worst case. Against pyarrow's dictionary_encode, numpy.unique and a dict of Python, on
    the same ids. All in turn, round by round, one thread, processor time, medians; loops are compiled before; numbers must agree.
    A limit of interning, in the same run: as many random writes of 16 bytes into an empty table of the final size.
Command
    OMP_NUM_THREADS=1 python benchmarks/load.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kvpager.traces.formats import load_requests
from kvpager.traces.interning import intern
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.requests import RequestTrace
from kvpager.traces.requeststore import read_requests, write_requests

GOAL_IDS_PER_S = 20e6
TURNS, NEW_BLOCKS, BLOCK_SIZE = 8, 20, 16


def sessions(ids: int) -> tuple[RequestTrace, np.ndarray]:
    """Chats of eight turns in random order, each of which repeats its session and adds 20 blocks; and its ids, not yet dense."""
    rng = np.random.default_rng(1)
    count = ids // (NEW_BLOCKS * TURNS * (TURNS + 1) // 2)
    session = rng.permutation(np.repeat(np.arange(count), TURNS))
    order = np.argsort(session, kind="stable")
    turn = np.empty(len(session), np.int64)
    turn[order] = np.tile(np.arange(TURNS), count)
    lengths = NEW_BLOCKS * (turn + 1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    raw = (np.repeat(session * 1000 - starts[:-1], lengths) + np.arange(starts[-1])).astype(np.uint64)
    blocks, _ = intern(raw)
    none, n = np.full(len(session), -1), len(session)
    return RequestTrace(
        np.arange(n) / 10, session, none, BLOCK_SIZE * lengths, np.zeros(n, np.int64), np.zeros(n, np.int32), starts, blocks,
        BLOCK_SIZE, True,
    ), raw  # fmt: skip


def write_lines(path: Path, trace: RequestTrace, raw: np.ndarray) -> None:
    with path.open("wb") as file:
        for row in range(len(trace)):
            ids = raw[trace.starts[row] : trace.starts[row + 1]].tolist()
            record = {
                "timestamp": round(1000 * trace.time_s[row]), "input_length": int(trace.input_tokens[row]), "output_length": 0,
                "hash_ids": ids,
            }  # fmt: skip
            file.write(json.dumps(record).encode() + b"\n")


def plain_lines(path: Path, loads: Callable[[bytes], Any]) -> np.ndarray:
    """What a script does: parse, number the ids with a dict, make one array."""
    numbers: dict[int, int] = {}
    parts = []
    with path.open("rb") as file:
        for line in file:
            record = loads(line)
            parts.append(np.array([numbers.setdefault(one, len(numbers)) for one in record["hash_ids"]], np.int32))
    return np.concatenate(parts)


def bare_parquet(path: Path) -> np.ndarray:
    table = pq.read_table(path, use_threads=False)
    blocks = table["blocks"].combine_chunks()
    values: np.ndarray = blocks.values.to_numpy()
    return values


def by_unique(ids: np.ndarray) -> np.ndarray:
    """Sorted numbers, put into the order of first appearance."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]


def by_arrow(ids: np.ndarray) -> np.ndarray:
    numbers: np.ndarray = pa.array(ids).dictionary_encode().indices.to_numpy()
    return numbers


def by_dict(ids: np.ndarray) -> np.ndarray:
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in ids.tolist()], np.int32)


@numba.njit(cache=True)
def scatter(where: Any, table: Any) -> None:
    for at in range(len(where)):
        table[where[at], 0] = at


def limit_s(distinct: int) -> float:
    """Time to write once into each of so many random places of a table with twice as many."""
    slots = 1 << (2 * distinct - 1).bit_length()
    where = np.random.default_rng(0).integers(0, slots, distinct)
    begun = time.process_time()
    scatter(where, np.zeros((slots, 2), np.uint64))
    return time.process_time() - begun


def compared(ways: dict[str, Callable[[], np.ndarray]], ids: int, rounds: int) -> dict[str, Any]:
    """Times of all ways in turn; the first is ours."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        expected = None
        for name, way in ways.items():
            begun = time.process_time()
            numbers = way()
            times[name].append(time.process_time() - begun)
            if expected is not None and not np.array_equal(expected, numbers):
                raise SystemExit(f"{name} numbers blocks otherwise")
            expected = numbers
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    ours = next(iter(medians.values()))
    return {
        "ids": ids,
        "ratio": {name: taken / ours for name, taken in medians.items()},
        "ids_per_cpu_s": {name: ids / taken for name, taken in medians.items()},
        "s_rounds": times,
    }


def told(what: str, found: dict[str, Any]) -> None:
    ours, *others = found["ratio"]
    against = ", ".join(f"{found['ratio'][name]:.1f} x {name}" for name in others)
    speeds = ", ".join(f"{name} {speed / 1e6:.1f}" for name, speed in found["ids_per_cpu_s"].items())
    print(f"{what:24}{ours} is {against}\n{'':24}M ids a CPU-second: {speeds}", flush=True)


def loading(trace: RequestTrace, raw: np.ndarray, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        ours, lines = Path(folder) / "made.parquet", Path(folder) / "made_mooncake.jsonl"
        write_requests(ours, trace)
        write_lines(lines, trace, raw)
        ways: dict[str, Callable[[], np.ndarray]] = {
            "Parquet, checked": lambda: read_requests(ours).blocks,
            "bare pyarrow": lambda: bare_parquet(ours),
            "JSONL, checked": lambda: load_requests(lines, f"mooncake:block_size={BLOCK_SIZE}").blocks,
            "orjson": lambda: plain_lines(lines, orjson.loads),
            "json": lambda: plain_lines(lines, json.loads),
        }
        found = compared(ways, len(raw), rounds)
        found["file_bytes"] = {"Parquet": ours.stat().st_size, "JSONL": lines.stat().st_size}
    told("loading", found)
    return found


def interning(name: str, ids: np.ndarray, rounds: int) -> dict[str, Any]:
    ways: dict[str, Callable[[], np.ndarray]] = {
        "intern": lambda: intern(ids)[0],
        "pyarrow dictionary_encode": lambda: by_arrow(ids),
        "numpy.unique": lambda: by_unique(ids),
        "dict": lambda: by_dict(ids),
    }
    found = compared(ways, len(ids), rounds)
    distinct = intern(ids)[1]
    limit = len(ids) / statistics.median(limit_s(distinct) for _ in range(rounds))
    found |= {"distinct": distinct, "limit_ids_per_cpu_s": limit}
    told(f"interning, {name}", found)
    print(f"{'':24}limit, bare writes of what is new: {limit / 1e6:.1f}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Loading a request trace.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the ids, fewer rounds")
    quick = parser.parse_args().quick
    ids, rounds = (1_000_000, 3) if quick else (10_000_000, 3)
    rng = np.random.default_rng(42)
    shares = np.cumsum(1.0 / np.arange(1, 1_000_001))
    hashes = rng.integers(0, 2**64, max(ids, 1_000_000), np.uint64)
    trace, raw = sessions(ids)
    scatter(np.zeros(1, np.int64), np.zeros((1, 2), np.uint64))
    results = {
        "loading": loading(trace, raw, rounds),
        "interning/sessions": interning("sessions", raw, rounds),
        "interning/zipf": interning("Zipf", hashes[np.searchsorted(shares, rng.random(ids) * shares[-1])], rounds),
        "interning/distinct": interning("all distinct", hashes[:ids], rounds),
    }
    speeds = {name: next(iter(one["ids_per_cpu_s"].values())) for name, one in results.items()}
    document = {
        "question": "block ids a CPU-second that are loaded, and numbered",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "numba", "pyarrow", "orjson"]),
        "date": now(),
        "evidence": "measured",
        "goal_ids_per_cpu_s": GOAL_IDS_PER_S,
        "goal_met": {name: speed >= GOAL_IDS_PER_S for name, speed in speeds.items()},
        "parquet_to_orjson": results["loading"]["ratio"]["orjson"],
        "results": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
