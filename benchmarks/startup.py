"""Time from a planner command to its answer.

Question
    Does every planner command start and answer in under 0.5 s, and how much of it is numpy's import?
Method
    Processes, one after another, in rounds of all commands, so that a busy moment meets each; wall time, best and median.
    In the same rounds: bare ``python -c pass`` and ``python -c 'import numpy'``. Bytecode is cached, as after an installation.
Command
    OMP_NUM_THREADS=1 python benchmarks/startup.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from kvpager.traces.provenance import this_machine, versions_of

MODEL = "--model llama-3.1-70b"
COMMANDS = (
    "--version",
    "--help",
    "model --help",
    "model llama-3.1-70b",
    f"plan {MODEL} --system b200-host-cxl --context 128K --users 16 --read 5%",
    f"plan {MODEL} --system b200-host-cxl --read 5% --explain --json",
    f"plan {MODEL} --system b200-host-cxl --sweep context=4K,32K,users=1:64",
    f"compare note-000-offload note-000-cxl b200x4-tp {MODEL} --users 16 --read 5.5%",
    f"breakeven {MODEL} --accelerator b200 --position 50000",
    "claims",
    "claims softmax-example",
    "list systems",
    "list models",
)
BARE = {"python -c pass": "pass", "python -c 'import numpy'": "import numpy"}


def timed(rounds: int) -> dict[str, list[float]]:
    """Seconds of every command in every round, after one round that fills the caches."""
    kvpager = [sys.executable, "-c", "from kvpager.cli import main; main()"]
    lines = {text: [sys.executable, "-c", code] for text, code in BARE.items()}
    lines |= {text: [*kvpager, *text.split()] for text in COMMANDS}
    seconds: dict[str, list[float]] = {text: [] for text in lines}
    with tempfile.TemporaryDirectory() as folder:
        settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        settings |= {"PYTHONPYCACHEPREFIX": folder}
        for _ in range(rounds + 1):
            for text, line in lines.items():
                start = time.perf_counter()
                subprocess.run(line, stdout=subprocess.DEVNULL, env=settings, check=True)
                seconds[text].append(time.perf_counter() - start)
    return {text: times[1:] for text, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    times = timed(rounds)
    numpy_s = statistics.median(times["python -c 'import numpy'"])
    results = {}
    for text, every in times.items():
        best, median = min(every), statistics.median(every)
        results[text] = {"of_numpy_import": round(median / numpy_s, 2), "best_s": round(best, 3), "median_s": round(median, 3)}
        print(f"{median / numpy_s:5.2f} x numpy's import; best {best:.3f} s, median {median:.3f} s  {text}")
    most = max(results[text]["median_s"] for text in COMMANDS)
    document = {
        "question": "time from a planner command to its answer, and how much of it is numpy's import",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "typer", "rich"]),
        "results": {"rounds": rounds, "commands": results, "most_median_s": most},
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
