"""A whole token of `generate` over a tiered cache, against transformers' own cache.

Question
    With everything resident, is a token over the tiered cache slower than with ``DynamicCache`` and SDPA?
Method
    SmolLM2-135M-Instruct, real weights in float32, on the beginning of ``argparse.py``, one thread. One prefill fills a
    ``DynamicCache``; its keys and values go into the tiered cache by the store's own admission. Then both continue, a few
    tokens of ``model.generate`` in turn; a token's time runs from one call of the streamer to the next, and the figure is
    the median of the thread's processor time. The selective step (a tenth of the blocks) is timed beside. The exact
    cache must give the tokens that `DynamicCache` gives. Goal: exact ≤ 1.0 × from 2K on.
Command
    OMP_NUM_THREADS=1 python benchmarks/live_token.py [--quick] [--rounds N] [--dir DIR]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from kvpager.core import Ids, Tick
from kvpager.live.opening import open_store, plan_budget
from kvpager.live.rows import Row
from kvpager.live.transformers import LoadedModel, TieredCache, load_model
from kvpager.traces.provenance import now, this_machine, versions_of

GOAL, TOKENS, SELECTOR = 1.0, 8, "outlier_mean:read_fraction=0.1"


class Clock:
    """A streamer that notes when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        """Take a token."""
        self.times.append(time.thread_time())

    def end(self) -> None:
        """Nothing follows."""


class Side:
    """A model and one cache, continued a few tokens at a time."""

    def __init__(self, model: Any, cache: Any, attention: str, ids: torch.Tensor) -> None:
        self.model, self.cache, self.attention, self.ids = model, cache, attention, ids
        self.token_s: list[float] = []

    def go(self, *, counted: bool) -> None:
        """Generate some tokens; those behind the first are timed."""
        clock = Clock()
        if self.model.config._attn_implementation != self.attention:
            self.model.set_attn_implementation(self.attention)
        self.ids = self.model.generate(
            self.ids, attention_mask=torch.ones_like(self.ids), cache=self.cache, streamer=clock, do_sample=False,
            max_new_tokens=TOKENS + 1, min_new_tokens=TOKENS + 1, pad_token_id=0,
        )  # fmt: skip
        if counted:
            self.token_s += [after - before for before, after in zip(clock.times[1:], clock.times[2:], strict=False)]


def fill(cache: TieredCache, dynamic: DynamicCache, tokens: int) -> None:
    """Give a tiered cache what a dynamic one holds, in whole blocks."""
    store, table, layout = cache.store, cache.store.table, cache.store.layout
    blocks = tokens // layout.block_size
    row = Row(table.new_sequence())
    table.seal(table.open_many(row.sequence, blocks))
    row.refresh(table)
    step, shape = store.next_step(), (layout.kv_heads, blocks, layout.block_size, -1)
    for layer, number in enumerate(store.layer_numbers):
        key, value = (getattr(dynamic.layers[number], name)[0].reshape(shape) for name in ("keys", "values"))

        def write(units: Ids, key: torch.Tensor = key, value: torch.Tensor = value) -> None:
            block = torch.from_numpy(np.searchsorted(row.bases, units, side="right") - 1)
            head = torch.from_numpy(table.kv_head[units]).long()
            store.keys[store.key_index(units)] = key[head, block].mT.to(store.keys.dtype)
            store.values[store.index(units)] = value[head, block].to(store.values.dtype)

        tick = Tick(step, layer)
        store.driver.begin(tick)
        store.driver.admit(tick, row.units(table, layer), write)
        if store.summary is not None:
            store.summary.put(layer, row.bases // table.units_per_block, key.transpose(0, 1).contiguous().numpy())
    row.tokens, row.sealed = tokens, blocks
    cache.batch.rows.append(row)
    cache.tokens = tokens


def measure(loaded: LoadedModel, context: int, rounds: int, base: Path | None) -> dict[str, Any]:
    """Time tokens of all caches in turn."""
    text = Path(argparse.__file__).read_text(encoding="utf-8")
    ids = torch.tensor([loaded.tokenize(text)[: context + 1]])
    loaded.model.set_attn_implementation("sdpa")
    dynamic = DynamicCache()
    with torch.inference_mode():
        loaded.model(input_ids=ids[:, :context], cache=dynamic, use_cache=True, logits_to_keep=1)
    budget = plan_budget(
        loaded.geometry, context_tokens=context + (rounds + 2) * (TOKENS + 1), hbm="100%", rows=2, selector=SELECTOR
    )
    with tempfile.TemporaryDirectory(dir=base) as folder, open_store(loaded, folder, budget, selector=SELECTOR) as store:
        sides = {"dynamic": Side(loaded.model, dynamic, "sdpa", ids)}
        for name, selective in (("exact", False), ("selective", True)):
            cache = TieredCache(loaded.model, store, selective=selective)
            fill(cache, dynamic, context)
            sides[name] = Side(loaded.model, cache, "kvpager", ids)
        for number in range(rounds + 1):  # the first one compiles and warms up
            for side in sides.values():
                side.go(counted=number > 0)
        hits = store.counts.block_hit_ratio
    token_s = {name: statistics.median(side.token_s) for name, side in sides.items()}
    return {
        "context": context,
        "exact_to_dynamic": token_s["exact"] / token_s["dynamic"],
        "selective_to_dynamic": token_s["selective"] / token_s["dynamic"],
        "same_tokens": bool(torch.equal(sides["exact"].ids, sides["dynamic"].ids)),
        "block_hit_ratio": hits,
        "token_s": token_s,
        "token_s_runs": {name: side.token_s for name, side in sides.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="A token of generate over a tiered cache.")
    parser.add_argument("--quick", action="store_true", help="2K only, few rounds")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--contexts", type=int, nargs="+")
    parser.add_argument("--dir", type=Path, help="where the store's directory is made")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded, rounds = load_model("smollm2"), 2 if options.quick else options.rounds
    results = []
    for context in options.contexts or ((2048,) if options.quick else (2048, 4096, 7936)):
        row = measure(loaded, context // 16 * 16, rounds, options.dir)
        results.append(row)
        ms = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in row["token_s"].items())
        print(
            f"{context:>6} tokens: exact {row['exact_to_dynamic']:.3f} × DynamicCache, selective "
            f"{row['selective_to_dynamic']:.3f} ×; ms a token: {ms}; same tokens: {row['same_tokens']}",
            flush=True,
        )
    document = {
        "question": "a whole token of generate over a tiered cache, everything resident, against DynamicCache and SDPA",
        "machine": this_machine(),
        "versions": versions_of(["numpy", "numba", "torch", "transformers"]),
        "date": now(),
        "evidence": "measured",
        "clock": "processor time of the thread",
        "goal": GOAL,
        "goal_met": all(row["exact_to_dynamic"] <= GOAL and row["same_tokens"] for row in results),
        "results": results,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
