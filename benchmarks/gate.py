"""The gate against always fetching and never fetching.

Question
    Does the gate that decides between fetching a prefix and computing it again stay near the better of the two, whatever
    the disk does, and what does it cost where nothing can be reused?
Method
    SmolLM2-135M-Instruct in float32, one thread. A block store on this disk holds the KV of a few documents, in blocks of 16
    tokens, put there after real prefills, which the gate was told of. Each request is a document's beginning and some tokens
    that no store has. It is answered three times, in random order: "always" fetches every block that is held, "never"
    computes everything, "gate" does what it is told. Blocks go from the store into a ``DynamicCache``, the rest is computed,
    and the next token must be the same. Regimes: the disk at full speed; slowed, in its file layer, to a quarter of the rate
    at which fetching and computing take equally long here; at that rate; full speed, then slowed; slowed, then full speed;
    and, as a control, requests that share nothing. Fetches are timed by the clock, computing by the thread's processor
    time. The figure is the gate's seconds over those of the better side, for each regime. Goal: at most 1.05 where the disk
    stays as it is, and 1.02 in the control.
Command
    OMP_NUM_THREADS=1 python benchmarks/gate.py [--quick] [--requests N] [--dir DIR]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sides.paced import PacedFiles
from transformers.cache_utils import DynamicCache

from kvpager import store as block_store
from kvpager.live.transformers import LoadedModel, load_model
from kvpager.store import Namespace, chain
from kvpager.store.blockstore import BlockStore
from kvpager.store.gate import Decision, Gate
from kvpager.traces.provenance import now, this_machine, versions_of

TOKENS, SUFFIX, DOCUMENTS, SLOWER = 16, 16, 6, 4.0
GOALS = {"full speed": 1.05, "slow": 1.05, "even": 1.05, "no reuse": 1.02}


class Engine:
    """A model that takes blocks from a store, in one of three ways."""

    def __init__(self, loaded: LoadedModel, blocks: BlockStore, longest: int) -> None:
        config = loaded.model.config
        self.model, self.blocks = loaded.model, blocks
        self.shape = (config.num_hidden_layers, 2, config.num_key_value_heads, TOKENS, config.head_dim)
        self.block_bytes = math.prod(self.shape) * 4
        self.memory = np.zeros((longest, *self.shape), np.float32)
        self.namespace = Namespace("smollm2", "float32", "layer-kv-head-token", TOKENS)

    def compute(self, ids: list[int], cache: DynamicCache) -> tuple[int, float]:
        """Take in what the cache lacks; return the next token, and the seconds."""
        have = cache.get_seq_length()
        began = time.thread_time()
        with torch.inference_mode():
            told = self.model(input_ids=torch.tensor([ids[have:]]), cache=cache, use_cache=True, logits_to_keep=1)
        return int(told.logits[0, -1].argmax()), time.thread_time() - began

    def keep(self, ids: list[int]) -> tuple[int, float]:
        """Compute a document and put its blocks into the store."""
        cache = DynamicCache()
        _, seconds = self.compute(ids, cache)
        keys = chain(ids, self.namespace, TOKENS)
        both = [torch.stack([layer.keys[0], layer.values[0]]) for layer in cache.layers]
        kv = torch.stack(both)[:, :, :, : len(keys) * TOKENS].unflatten(3, (len(keys), TOKENS)).permute(3, 0, 1, 2, 4, 5)
        if not self.blocks.put_many(keys, [*kv.contiguous().numpy()], [None, *keys[:-1]]).all():
            raise SystemExit("the store did not keep a document")
        return len(ids), seconds

    def held(self, ids: list[int]) -> list[bytes]:
        """Keys of the leading blocks that the store has."""
        keys = chain(ids, self.namespace, TOKENS)
        there = self.blocks.contains_many(keys)
        return keys[: int(there.argmin()) if not there.all() else len(keys)]

    def fetch(self, keys: list[bytes], cache: DynamicCache) -> float:
        """Bring blocks into the cache; return the seconds."""
        began = time.perf_counter()
        if keys:
            if not self.blocks.get_many(keys, [*self.memory[: len(keys)]]).all():
                raise SystemExit("the store did not serve what it holds")
            kv = torch.from_numpy(self.memory[: len(keys)]).permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
            for layer in range(self.shape[0]):
                cache.update(kv[layer, 0][None].contiguous(), kv[layer, 1][None].contiguous(), layer)
        return time.perf_counter() - began

    def answer(self, way: str, ids: list[int], gate: Gate) -> tuple[float, int, Decision | None]:
        """Answer one request; return its seconds and its token."""
        cache, decision = DynamicCache(), None
        began = time.perf_counter()
        keys = [] if way == "never" else self.held(ids)
        if way == "gate":
            decision = gate.decide(len(keys), self.block_bytes, 0)
            keys = keys[: decision.fetch]
        asked_s = time.perf_counter() - began
        fetch_s = self.fetch(keys, cache)
        have = cache.get_seq_length()
        token, compute_s = self.compute(ids, cache)
        if decision is not None:
            if keys:
                gate.fetched(decision.fetch_bytes, fetch_s, decision)
            gate.prefilled(len(ids) - have, have, compute_s, decision)
        return asked_s + fetch_s + compute_s, token, decision


def regime(
    engine: Engine, files: PacedFiles, rates: list[float], prompts: list[list[int]], seen: list[tuple[int, float]], seed: int
) -> dict[str, Any]:
    """Answer the same requests in all ways; `rates` are the disk's, each for its share of them."""
    gate, rng = Gate(TOKENS), np.random.default_rng(seed)
    for tokens, seconds in seen:
        gate.prefilled(tokens, 0, seconds)
    spent: dict[str, list[float]] = {"always": [], "never": [], "gate": []}
    same = True
    for number, ids in enumerate(prompts):
        files.bytes_per_s = rates[number * len(rates) // len(prompts)]
        tokens = set()
        for way in rng.permutation([*spent]).tolist():
            seconds, token, _ = engine.answer(way, ids, gate)
            spent[way].append(seconds)
            tokens.add(token)
        same = same and len(tokens) == 1
    files.bytes_per_s = math.inf
    sums = {way: sum(times) for way, times in spent.items()}
    half = len(prompts) // 2
    later = {way: sum(times[half:]) for way, times in spent.items()}
    return {
        "ratio_in_second_half": later["gate"] / min(later["always"], later["never"]),
        "seconds": sums, "ratio_to_better": sums["gate"] / min(sums["always"], sums["never"]),
        "better": min(("always", "never"), key=lambda way: sums[way]), "same_tokens": same, "gate": gate.stats(),
        "bytes_per_s": [rate if math.isfinite(rate) else None for rate in rates],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The gate against always fetching and never fetching.")
    parser.add_argument("--quick", action="store_true", help="few requests")
    parser.add_argument("--requests", type=int, help="a regime")
    parser.add_argument("--dir", type=Path, help="where the store's directory is made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    requests, longest = options.requests or (12 if options.quick else 60), 10
    loaded, files, rng = load_model("smollm2"), PacedFiles(), np.random.default_rng(0)
    loaded.model.set_attn_implementation("sdpa")
    text = loaded.tokenize(Path(argparse.__file__).read_text(encoding="utf-8"))
    documents = [text[first : first + longest * TOKENS] for first in range(0, DOCUMENTS * 997, 997)]

    def prompts(shared: bool) -> list[list[int]]:
        lengths = rng.integers(3, longest + 1, requests) * TOKENS
        fresh = rng.integers(1000, 40_000, (requests, longest * TOKENS + SUFFIX)).tolist()
        heads = [documents[number % DOCUMENTS] if shared else fresh[number] for number in range(requests)]
        return [head[:length] + new[-SUFFIX:] for head, length, new in zip(heads, lengths.tolist(), fresh, strict=True)]

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        blocks = block_store.open(Path(folder) / "store", "512MiB", files=files)
        engine = Engine(loaded, blocks, longest)
        engine.compute(documents[0], DynamicCache())  # warm up
        seen = [engine.keep(one) for one in documents]
        seen += [(count, engine.compute(documents[0][:count], DynamicCache())[1]) for count in (16, 32, 64, 96)]
        even = engine.block_bytes / TOKENS * sum(count for count, _ in seen) / sum(seconds for _, seconds in seen)
        slow, full = even / SLOWER, math.inf
        plans = {
            "full speed": [full], "slow": [slow], "even": [even], "slows down": [full, slow], "recovers": [slow, full],
            "no reuse": [full],
        }  # fmt: skip
        for number, (name, rates) in enumerate(plans.items()):
            row = results[name] = regime(engine, files, rates, prompts(name != "no reuse"), seen, number)
            row["goal"] = GOALS.get(name)
            sums = ", ".join(f"{way} {seconds:.2f}" for way, seconds in row["seconds"].items())
            made = ", ".join(f"{count} {why}" for why, count in row["gate"]["decisions"].items() if count)
            print(
                f"{name:>10}: gate {row['ratio_to_better']:.3f} of {row['better']!r}, {row['ratio_in_second_half']:.3f} in the "
                f"second half; seconds: {sums}; {made}", flush=True,
            )  # fmt: skip
        blocks.close()
    document = {
        "question": "fetch or compute a prefix again: the gate against always and never", "machine": this_machine(),
        "versions": versions_of(["numpy", "torch", "transformers", "xxhash"]), "date": now(), "evidence": "measured",
        "clock": "fetch: wall; compute: processor time of the thread", "requests": requests,
        "block_bytes": engine.block_bytes, "even_bytes_per_s": even, "goals": GOALS,
        "goal_met": all(row["ratio_to_better"] <= (row["goal"] or math.inf) and row["same_tokens"] for row in results.values()),
        "results": results,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
