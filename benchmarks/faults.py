"""What becomes of damaged blocks: kvpager's store, vLLM's file-system tier, LMCache's local disk, SGLang's file backend.

Question
    After a bit flipped, a file was cut or deleted, two blocks changed places or the process was killed: does a get serve
    wrong bytes, say that it failed, or serve the right ones?
Method
    Eight blocks of 64 KiB are put and got once. Block 3 is damaged on disk, found by its first bytes, which no other block
    has: one bit flipped; its file cut in the middle of it; its file deleted; its bytes exchanged with those of block 5. Then
    all are got: in the process that wrote them, and in another one after it closed or was killed. What is served is compared
    with what was put. "detected": the damaged ones were not served, and that was said; "survives": all were served and
    right; "WRONG BYTES": a get said that it was done, and its bytes are not those that were put; "raises": an error instead
    of an answer. In brackets how many of the other blocks were served. kvpager keeps many blocks in a file: that file's
    deletion or cut may cost several.
    Peers live in environments of their own, which are named by option or variable; one that is not there is said to be
    missing. Exits with 1 if kvpager's column has anything but "detected" and "survives".
Command
    OMP_NUM_THREADS=1 python benchmarks/faults.py [--vllm PYTHON] [--lmcache PYTHON] [--sglang PYTHON]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sides.protocol import PEERS, STAMP_BYTES, Child, add_peers, peers, stamp

from kvpager.traces.provenance import now, this_machine, versions_of

BLOCKS, BLOCK_BYTES, DAMAGED, OTHER = 8, 64 << 10, 3, 5
FAULTS = ("none", "bit flipped", "cut", "file deleted", "exchanged")
ENDS = ("same process", "after a restart", "after kill -9")
GOOD = ("detected", "survives")


def found(folder: Path, number: int) -> tuple[Path, int]:
    """File and position of a block."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            position = file.read_bytes().find(stamp(0, number))
            if position >= 0:
                return file, position
    raise SystemExit(f"block {number} is nowhere in the side's files")


def write(file: Path, position: int, content: bytes) -> None:
    """Overwrite some bytes, on the disk itself: a side may read around the page cache."""
    with file.open("r+b") as opened:
        opened.seek(position)
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def damage(folder: Path, fault: str) -> None:
    """Do to the files what `fault` says."""
    if fault == "none":
        return
    file, position = found(folder, DAMAGED)
    content = file.read_bytes()[position : position + BLOCK_BYTES]
    if fault == "bit flipped":
        write(file, position + STAMP_BYTES + 100, bytes([content[STAMP_BYTES + 100] ^ 1]))
    elif fault == "cut":
        os.truncate(file, position + BLOCK_BYTES // 2)
    elif fault == "file deleted":
        file.unlink()
    else:
        other, there = found(folder, OTHER)
        theirs = other.read_bytes()[there : there + BLOCK_BYTES]
        write(file, position, theirs)
        write(other, there, content)


def outcome(side: Child, fault: str) -> str:
    """Get every block by itself; say what came of the damaged ones, and how many others were served."""
    hurt = {"none": [], "exchanged": [DAMAGED, OTHER]}.get(fault, [DAMAGED])
    said = {number: side.ask("get", 0, [number]) for number in range(BLOCKS)}
    served = [number for number, answer in said.items() if answer["ok"] == [True]]
    wrong = [number for number in served if said[number]["right"] != [True]]
    raised = [answer["raised"] for answer in said.values() if "raised" in answer]
    others = f"({len([number for number in served if number not in hurt and number not in wrong])} of {BLOCKS - len(hurt)})"
    if wrong:
        return f"WRONG BYTES {others}"
    if raised:
        return f"raises {raised[0]} {others}"
    if len(served) == BLOCKS:
        return "survives"
    if not hurt:
        return f"lost {others}"
    return f"detected {others}"


def tried(name: str, python: str, fault: str, end: str) -> str:
    """What becomes of one fault."""
    folder = Path(tempfile.mkdtemp(prefix="kvpager-faults-"))
    try:
        side = Child(name, python, folder, BLOCKS, BLOCK_BYTES, threads=4, capacity=64 << 20)
        if side.missing:
            side.end()
            return f"missing: {side.missing}"
        side.rate("put", 0)
        side.rate("get", 0)
        if end != "same process":
            side.end(kill=end == "after kill -9")
        damage(folder, fault)
        if end != "same process":
            side = Child(name, python, folder, BLOCKS, BLOCK_BYTES, threads=4, capacity=64 << 20)
        verdict = outcome(side, fault)
        side.end()
        return verdict
    finally:
        shutil.rmtree(folder)


def column(name: str, python: str, quick: bool) -> dict[str, str]:
    """Verdicts by fault and end; one line if the side is missing."""
    verdicts: dict[str, str] = {}
    for fault in FAULTS:
        for end in ENDS[:2] if quick else ENDS:
            verdict = tried(name, python, fault, end)
            if verdict.startswith("missing"):
                return {"": verdict}
            verdicts[f"{fault}, {end}"] = verdict
            print(f"{name:16} {fault:13} {end:16} {verdict}", flush=True)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description="What becomes of damaged blocks.")
    parser.add_argument("--quick", action="store_true", help="without kill -9")
    add_peers(parser)
    options = parser.parse_args()
    pythons = {"kvpager_store": sys.executable, **peers(options)}
    columns = {name: column(name, python, options.quick) for name, python in pythons.items()}
    missing = {name: "no Python was named for it" for name in PEERS if name not in pythons}
    missing |= {name: some.pop("") for name, some in columns.items() if "" in some}
    columns = {name: some for name, some in columns.items() if some}
    print(f"\n{'':30}" + "".join(f"{name:32}" for name in columns))
    for row in columns["kvpager_store"]:
        print(f"{row:30}" + "".join(f"{some[row]:32}" for some in columns.values()))
    for name, why in missing.items():
        print(f"{name} is missing: {why}")
    ours = {row: verdict for row, verdict in columns["kvpager_store"].items() if not verdict.startswith(GOOD)}
    document: dict[str, Any] = {
        "question": "what becomes of damaged blocks", "machine": this_machine(), "versions": versions_of(["numpy", "xxhash"]),
        "date": now(), "evidence": "measured", "kvpager_holds": not ours, "missing": missing, "results": columns,
    }  # fmt: skip
    print(json.dumps(document))
    sys.exit(1 if ours else 0)


if __name__ == "__main__":
    main()
