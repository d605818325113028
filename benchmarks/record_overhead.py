"""The cost of recording on top of decoding.

Question
    By how much does a watched decode step, written to disk, exceed the same step without recording?
Method
    SmolLM2 in float32, one thread. Both sides run in the same process on the same weights and on copies of one
    prefilled cache; the plain side uses SDPA with ``enable_gqa`` (K and V not repeated) and the same cache class.
    Plain and recorded steps alternate, each 16-step flush to disk is timed apart and spread over its steps, and
    medians are compared. Goal: under 15 %.
Command
    OMP_NUM_THREADS=1 python benchmarks/record_overhead.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kvpager.live.transformers import LoadedModel, RecordingDecoder, load_model
from kvpager.traces.attention import CHUNK_STEPS, AttentionWriter
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.recorder import header_of

GOAL = 0.15


def measure(loaded: LoadedModel, tokens: list[int], context: int, steps: int) -> dict[str, Any]:
    """Time `steps` plain and `steps` recorded decode steps, alternating."""
    decoder = RecordingDecoder(loaded)
    prefill_mass, _ = decoder.prefill(tokens[:context], lambda what, done, total: None)
    cache = copy.deepcopy(decoder.cache)
    plain, watched, flushes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        header = header_of(decoder, tokens[:context], context, mode="forced", text_name="argparse.py", command="")
        with AttentionWriter(Path(folder) / "t.zarr", header, steps=steps, prefill_mass=prefill_mass) as writer:
            for step in range(steps):
                token = tokens[context + step]
                plain.append(_timed(lambda token=token: _plain_step(loaded.model, token, cache)))
                seen: list[Any] = []
                watched.append(_timed(lambda token=token, seen=seen: seen.append(decoder.step(token)[0])))
                written = _timed(lambda seen=seen: writer.append(seen[0]))
                if (step + 1) % CHUNK_STEPS == 0:
                    flushes.append(written)
                else:
                    watched[-1] += written
    plain_s, watched_s, flush_s = (statistics.median(times[2:] or times) for times in (plain, watched, [0.0] * 2 + flushes))
    recorded_s = watched_s + flush_s / CHUNK_STEPS
    return {
        "context_tokens": context, "steps": steps, "plain_step_s": plain_s, "watched_step_s": watched_s,
        "flush_s": flush_s, "recorded_step_s": recorded_s, "overhead": recorded_s / plain_s - 1,
    }  # fmt: skip


def _plain_step(model: Any, token: int, cache: Any) -> int:
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([[token]]), cache=cache, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of recording over decoding.")
    parser.add_argument("--quick", action="store_true", help="one short context")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model("smollm2")
    tokens = loaded.tokenize(Path(argparse.__file__).read_text(encoding="utf-8"))
    sizes = [(1024, 34)] if options.quick else [(2048, 66), (7936, 66)]
    results = [measure(loaded, tokens, context, steps) for context, steps in sizes]
    for row in results:
        plain, recorded = 1e3 * row["plain_step_s"], 1e3 * row["recorded_step_s"]
        print(f"{row['context_tokens']} tokens: plain {plain:.1f} ms, recorded {recorded:.1f} ms a step", end=", ")
        print(f"overhead {100 * row['overhead']:.1f} % (goal < {100 * GOAL:.0f} %)")
    document = {
        "question": "cost of recording over decoding with grouped-query SDPA", "machine": this_machine(),
        "versions": versions_of(["torch", "transformers", "zarr", "numpy"]), "date": now(), "evidence": "measured",
        "goal": GOAL, "results": results,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
