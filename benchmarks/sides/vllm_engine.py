"""One vLLM engine on the CPU, for as long as this process lives: JSON on stdin, a line of JSON for each prompt."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine, its worker and its tiers in this process: one clock for all
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",  # vLLM 0.28 starts its chain of hashes at a random number without it
}


class Pulse(threading.Thread):
    """Notices when the process stands still: stopped by a signal, or without a processor."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._longest_s = 0.0
        self.start()

    def run(self) -> None:
        """Beat, and note the longest time between two beats."""
        last = time.perf_counter()
        while True:
            time.sleep(0.02)
            now = time.perf_counter()
            self._longest_s, last = max(self._longest_s, now - last), now

    def longest_s(self) -> float:
        """Of the beats since the last call."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest


def slow_down(bytes_per_s: float) -> None:
    """Let the store that will be opened here read no faster."""
    from paced import PacedFiles

    from kvpager.store import opening

    files = PacedFiles(bytes_per_s)
    opening.Files = lambda: files  # type: ignore[assignment,misc]


def settle(llm: Any, sampling: Any) -> None:
    """Step the engine until its tiers have nothing under way."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    more = 4
    while connector is not None and more:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
        more -= not connector.connector_scheduler.manager.has_pending_work()


def counts(llm: Any) -> dict[str, float]:
    """What the tier counted, if it is kvpager's."""
    found: dict[str, float] = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:kvpager_"):
            name = metric.name.removeprefix("vllm:kvpager_")
            found[name] = found.get(name, 0) + metric.value
    return found


def main() -> None:
    """Serve what is asked, one prompt after the other."""
    began = time.perf_counter()
    asked = json.load(sys.stdin)
    if asked["bytes_per_s"]:
        slow_down(asked["bytes_per_s"])
    from vllm import LLM, SamplingParams, __version__
    from vllm.config import KVTransferConfig

    llm = LLM(
        asked["model"], skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048, dtype="float32", seed=0,
        max_num_seqs=1, disable_log_stats=False,
        kv_transfer_config=KVTransferConfig(**asked["transfer"]) if asked["transfer"] else None,
    )  # fmt: skip
    own = {"temperature": 0, "ignore_eos": True, "detokenize": False}
    sampling, one = SamplingParams(max_tokens=asked["tokens"], **own), SamplingParams(max_tokens=1, **own)
    start_s, pulse = time.perf_counter() - began, Pulse()
    for step in asked["steps"]:
        if step == "reset":  # the prefix cache, and what the host's memory holds; the tier keeps what it has
            settle(llm, one)
            llm.reset_prefix_cache(reset_connector=True)
            continue
        pulse.longest_s()
        wall, cpu = time.perf_counter(), time.process_time()
        (done,) = llm.generate([{"prompt_token_ids": step["ids"]}], sampling, use_tqdm=False)
        seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        time.sleep(0.05)  # for the beat that is due
        said = {
            "kind": step["kind"], "prompt": step["prompt"], "ttft_s": done.metrics.first_token_latency,
            "seconds": seconds, "cpu_s": cpu_s,
            "tokens": list(done.outputs[0].token_ids), "cached": done.num_cached_tokens,
            "pause_s": pulse.longest_s(),
        }  # fmt: skip
        sys.stdout.write(json.dumps(said) + "\n")
    settle(llm, one)
    sys.stdout.write(json.dumps({"counts": counts(llm), "start_s": start_s, "vllm": __version__}) + "\n")


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    main()
