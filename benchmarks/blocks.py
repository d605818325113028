"""The block store against the bare disk, and against the disk tiers of serving engines.

Question
    What share of the raw O_DIRECT rate of the same shape does the block store keep, with checksums and a byte cap, where the
    caller lends its memory to the disk, and where bytes are copied? And how do vLLM's file-system tier, LMCache's local disk
    and SGLang's file backend do?
Method
    200 blocks of 5 MiB, 400 of 1 MiB, 4,000 of 64 KiB, put and got as one batch, in memory that is there from the start. Each
    side is a process of its own, asked in turn, round by round in random order; all compare what they got with what they
    put, untimed. Raw: threads that move one block a call between memory and a preallocated, written file, O_DIRECT, as many
    threads as the store has. A put writes new blocks into room that is there and was written before; "evicting" into a store
    that is full. A get asks for blocks as they were put, as a prefix is read, or "shuffled". Nobody flushes: a put is as
    fast as the device takes it into its cache. Ratios are medians over the rounds. Goals: get 0.93, put 0.85 of raw.
    Peers live in environments of their own, which are named by option or variable; one that is not there is said to be
    missing. Files leave the page cache before each get; "page cache" is the same get again where a side reads through it.
    The store's sums and copies need a processor beside the disk: on a busy machine it falls behind raw, which needs none.
Command
    OMP_NUM_THREADS=1 python benchmarks/blocks.py [--quick] [--dir DIR] [--vllm PYTHON] [--lmcache PYTHON] [--sglang PYTHON]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from sides.protocol import PEERS, Child, add_peers, peers

from kvpager.store.rack import THREADS
from kvpager.traces.provenance import now, this_machine, versions_of

GOALS = {"get": 0.93, "put": 0.85}
KIB, MIB = 1 << 10, 1 << 20
SHAPES = ((5 * MIB, 200), (MIB, 400), (64 * KIB, 4000))

Rates = dict[tuple[str, str], list[float]]


class Shape:
    """All sides, with blocks of one size.

    Parameters
    ----------
    folder : Path
        Where their files go.
    block_bytes, blocks : int
        Of a batch.
    pythons : dict of str to str
        Interpreters of the peers.

    Attributes
    ----------
    missing : dict of str to str
        Peers that are not there, and why.
    """

    def __init__(self, folder: Path, block_bytes: int, blocks: int, pythons: dict[str, str]) -> None:
        self.block_bytes, self.blocks = block_bytes, blocks
        batch, made = blocks * (block_bytes + 8 * KIB), (folder, block_bytes, blocks)
        self.sides = {
            "raw": self._side("raw", sys.executable, *made, threads=THREADS),
            "kvpager": self._side("kvpager_store", sys.executable, *made, capacity=int(2.5 * batch), lend=True),
            "kvpager, copying": self._side(
                "kvpager_store", sys.executable, *made, part="copy", capacity=int(2.5 * batch), lend=False
            ),
            "kvpager, evicting": self._side(
                "kvpager_store", sys.executable, *made, part="full", capacity=int(1.4 * batch), lend=True
            ),
        }
        self.sides |= {name: self._side(name, python, *made, threads=THREADS) for name, python in pythons.items()}
        self.missing = {name: side.missing for name, side in self.sides.items() if side.missing}
        for name in self.missing:
            self.sides.pop(name).end()

    @staticmethod
    def _side(name: str, python: str, folder: Path, block_bytes: int, blocks: int, part: str = "", **settings: Any) -> Child:
        return Child(name, python, folder / (name + part), blocks, block_bytes, **settings)

    def rounds(self, count: int) -> Rates:
        """Rates in bytes a second, by what and side; the first round warms up and is not in them."""
        rng, rates = random.Random(self.block_bytes), Rates()
        shuffled = rng.sample(range(self.blocks), self.blocks)
        for seed in range(count + 1):
            for name in rng.sample(list(self.sides), len(self.sides)):
                rates.setdefault(("put", name), []).append(self.sides[name].rate("put", seed))
            for what, order in (("get", None), ("get, shuffled", shuffled)):
                for name in rng.sample([name for name in self.sides if "evicting" not in name], len(self.sides) - 1):
                    side = self.sides[name]
                    side.ask("cold")
                    rates.setdefault((what, name), []).append(side.rate("get", seed, order))
                    if what == "get" and "page cache" in side.label:
                        rates.setdefault(("get, page cache", name), []).append(side.rate("get", seed))
            for name, side in self.sides.items():
                if "evicting" not in name:
                    side.ask("drop", seed)
        return {key: some[1:] for key, some in rates.items()}

    def end(self) -> None:
        """Close all sides."""
        for side in self.sides.values():
            side.end()


def rows_of(shape: Shape, rates: Rates) -> list[dict[str, Any]]:
    """A row for each thing done by each side: ratio to raw of the same rounds, and to ours."""
    rows = []
    for (what, name), some in rates.items():
        raw = rates["get" if what == "get, page cache" else what, "raw"]
        ratios = [one / base for one, base in zip(some, raw, strict=True)]
        rows.append(
            {
                "what": what, "side": name, "block_bytes": shape.block_bytes, "blocks": shape.blocks,
                "ratio_to_raw": statistics.median(ratios), "ratios_to_raw": [round(one, 3) for one in ratios],
                "bytes_per_s": statistics.median(some), "label": shape.sides[name].label,
            }
        )  # fmt: skip
    return rows


def told(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["side"] == "raw":
            continue
        goal = f" (goal {GOALS[row['what'][:3]]})" if row["side"] == "kvpager" else ""
        print(
            f"{row['block_bytes'] // KIB:>5} KiB {row['what']:16} {row['side']:18} {row['ratio_to_raw']:.2f} of raw{goal}, "
            f"{row['bytes_per_s'] / 1e9:.2f} GB/s: {row['label']}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The block store against the bare disk and against engines' disk tiers.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the blocks, fewer rounds")
    parser.add_argument("--dir", type=Path, help="where the files go; else the system's place for temporary ones")
    add_peers(parser)
    options = parser.parse_args()
    share, rounds = (5, 3) if options.quick else (1, 7)
    missing, results, load = dict.fromkeys(PEERS, "no Python was named for it"), [], []
    for block_bytes, blocks in SHAPES:
        folder = Path(tempfile.mkdtemp(prefix="kvpager-blocks-", dir=options.dir))
        try:
            load.append(os.getloadavg()[0])
            shape = Shape(folder, block_bytes, blocks // share, peers(options))
            missing = {name: why for name, why in missing.items() if name not in shape.sides} | shape.missing
            rates = shape.rounds(rounds)
            shape.end()
        finally:
            shutil.rmtree(folder)
        rows = rows_of(shape, rates)
        told(rows)
        results += rows
    for name, why in missing.items():
        print(f"{name} is missing: {why}")
    ours = {f"{row['block_bytes'] // KIB} KiB {row['what']}": row["ratio_to_raw"] for row in results if row["side"] == "kvpager"}
    document = {
        "question": "share of the raw O_DIRECT rate that the block store keeps, checksums on", "machine": this_machine(),
        "versions": versions_of(["numpy", "xxhash"]), "date": now(), "evidence": "measured", "load_before": load,
        "threads": THREADS, "goals": GOALS, "kvpager_to_raw": ours, "missing": missing, "results": results,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
