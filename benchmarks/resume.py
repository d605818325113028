"""How much faster a parked session goes on than one whose text is read again.

Question
    A process ends; another is to continue a session of 8K tokens. How long until its next token, by resuming it from disk
    and by prefilling its tokens?
Method
    SmolLM2 in float32, exact attention, one thread, HBM payload of 10 % of the KV. Each measurement is a process of its own
    that has loaded the model, opened the store, and decoded two tokens of another, short session, which compiles the
    kernel. All that is the same on both sides and is not counted; it is printed.
    "prefill": a new session takes in the tokens, 512 at a time, and computes one token; it is parked then, which is printed
    too. "resume": `Session.resume`, and one token; first with the slabs as the last process left them (O_DIRECT where the
    file system has it, so not from the page cache), three processes, median. Both then generate 16 tokens more, which must
    be the same. Goal: resuming at least 20 times as fast.
Command
    OMP_NUM_THREADS=1 python benchmarks/resume.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kvpager.live.budget import live_budget
from kvpager.live.fingerprint import fingerprint
from kvpager.live.layout import Layout
from kvpager.live.store import TieredStore
from kvpager.live.transformers import Session, load_model
from kvpager.traces.provenance import now, this_machine, versions_of

MORE, TIMES = 16, 3


def text_tokens(tokenize: Any, count: int) -> list[int]:
    """Return `count` tokens of the standard library's own sources."""
    ids: list[int] = []
    for name in ("argparse.py", "ast.py", "bdb.py"):
        ids += tokenize((Path(argparse.__file__).parent / name).read_text(encoding="utf-8"))
    return ids[:count]


def part(kind: str, folder: str, tokens: int) -> dict[str, Any]:
    """Measure one way to the next token, in this process."""
    torch.set_num_threads(1)
    loaded = load_model("smollm2")
    layout = Layout.of(loaded.geometry)
    budget = live_budget(layout, context_tokens=tokens + MORE + 1, hbm="10%")
    text = text_tokens(loaded.tokenize, tokens)
    started = time.perf_counter()
    with TieredStore(
        budget, folder, fingerprint=fingerprint(loaded, layout), layer_numbers=loaded.geometry.full_layers
    ) as store:  # fmt: skip
        opened = time.perf_counter()
        with Session(loaded, store) as other:
            other.run(3, text[:64])
        ready = time.perf_counter()
        if kind == "prefill":
            session = Session(loaded, store, id="s")
            new = session.run(1, text)
        else:
            session = Session.resume(loaded, store, "s")
            restored = time.perf_counter()
            new = session.run(1)
        done = time.perf_counter()
        found: dict[str, Any] = {"open_s": opened - started, "warm_s": ready - opened, "to_next_token_s": done - ready}
        if kind == "prefill":
            session.park()
            found["park_s"] = time.perf_counter() - done
            new = session.run(1)
        else:
            found["restore_s"] = restored - ready
        found["tokens"] = new + session.run(MORE)
        found["recomputed_tokens"] = store.counts.recomputed_tokens
        found["kv_bytes"], found["direct"] = budget.kv_bytes, not store.slabs.stats.notices
    return found


def in_process(kind: str, folder: str, tokens: int) -> dict[str, Any]:
    """Run `part` in a process of its own."""
    command = [sys.executable, __file__, "--part", kind, "--store", folder, "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Resuming a session against prefilling it.")
    parser.add_argument("--quick", action="store_true", help="1K tokens instead of 8K")
    parser.add_argument("--part", choices=("prefill", "resume"), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(part(options.part, options.store, options.tokens)))
        return
    tokens = 1024 if options.quick else 8192 - MORE - 2
    with tempfile.TemporaryDirectory(prefix=".resume-", dir=".") as folder:
        prefill = in_process("prefill", folder, tokens)
        resumed = [in_process("resume", folder, tokens) for _ in range(TIMES)]
    same = all(one["tokens"] == prefill["tokens"] and not one["recomputed_tokens"] for one in resumed)
    seconds = {
        name: statistics.median(one[name] for one in resumed) for name in ("to_next_token_s", "restore_s", "open_s", "warm_s")
    }
    ratio = prefill["to_next_token_s"] / seconds["to_next_token_s"]
    print(f"{tokens} tokens, {prefill['kv_bytes'] / 2**20:.0f} MiB of KV, {'O_DIRECT' if prefill['direct'] else 'page cache'}")
    print(f"prefill: next token after {prefill['to_next_token_s']:.2f} s, parked in {prefill['park_s']:.2f} s")
    print(
        f"resume:  next token after {seconds['to_next_token_s']:.2f} s ({seconds['restore_s']:.3f} s to restore); "
        f"opening the store {seconds['open_s']:.2f} s, compiling and warming up {seconds['warm_s']:.2f} s"
    )
    print(f"ratio {ratio:.1f} (goal: 20), tokens {'the same' if same else 'DIFFER'}")
    for one in [prefill, *resumed]:
        del one["tokens"]
    document = {
        "question": "time to the next token: resumed against prefilled", "machine": this_machine(),
        "versions": versions_of(["torch", "transformers", "numpy", "numba"]), "date": now(), "evidence": "measured",
        "results": {"tokens": tokens, "prefill": prefill, "resume": resumed, "ratio": ratio, "same_tokens": same},
    }  # fmt: skip
    print(json.dumps(document))
    sys.exit(not same)


if __name__ == "__main__":
    main()
