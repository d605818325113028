"""The cost of recording on top of decoding.

Question
    By how much does a watched decode step, written to disk, exceed the same step without recording?
Method
    SmolLM2 in float32, one thread. Both sides run in the same process on the same weights and on copies of one
    prefilled cache; the plain side uses SDPA with ``enable_gqa`` (K and V not repeated) and the same cache class.
    Plain and recorded steps alternate. The overhead is the median, over the pairs, of recorded by plain time, less 1,
    plus a 16th of the median flush to disk by the median plain step. By wall clock and, because other load disturbs
    that, by processor time of the whole process. Goal: under 15 %.
Command
    OMP_NUM_THREADS=1 python benchmarks/record_overhead.py [--quick]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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
    pairs, flushes = [], []
    with tempfile.TemporaryDirectory() as folder:
        header = header_of(decoder, tokens[:context], context, mode="forced", text_name="argparse.py", command="")
        with AttentionWriter(Path(folder) / "t.zarr", header, steps=steps, prefill_mass=prefill_mass) as writer:
            for step in range(steps):
                token = tokens[context + step]
                started = _clocks()
                _plain_step(loaded.model, token, cache)
                plain = _clocks()
                seen, _ = decoder.step(token)
                watched = _clocks()
                writer.append(seen)
                written = _clocks()
                flushed = (step + 1) % CHUNK_STEPS == 0
                pairs.append((plain - started, (watched if flushed else written) - plain))
                if flushed:
                    flushes.append(written - watched)
    plain_s, recorded_s = (np.median(times, 0) for times in zip(*pairs[2:], strict=True))
    flush_s = np.median(flushes, 0) / CHUNK_STEPS
    overhead = np.median([recorded / plain for plain, recorded in pairs[2:]], 0) - 1 + flush_s / plain_s
    row: dict[str, Any] = {"context_tokens": context, "steps": steps}
    for number, clock in enumerate(("wall", "cpu")):
        row[clock] = {
            "plain_step_s": plain_s[number], "recorded_step_s": recorded_s[number] + flush_s[number],
            "flush_s_per_step": flush_s[number], "overhead": overhead[number],
        }  # fmt: skip
    return row


def _clocks() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])


def _plain_step(model: Any, token: int, cache: Any) -> int:
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([[token]]), cache=cache, use_cache=True, logits_to_keep=1)
        return int(out.logits[0, -1].argmax())


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
        for clock in ("wall", "cpu"):
            plain, recorded, overhead = (row[clock][key] for key in ("plain_step_s", "recorded_step_s", "overhead"))
            print(
                f"{row['context_tokens']} tokens, {clock}: plain {1e3 * plain:.1f} ms, recorded {1e3 * recorded:.1f} ms a step",
                end=", ",
            )
            print(f"overhead {100 * overhead:.1f} % (goal < {100 * GOAL:.0f} %)")
    document = {
        "question": "cost of recording over decoding with grouped-query SDPA", "machine": this_machine(),
        "versions": versions_of(["torch", "transformers", "zarr", "numpy"]), "date": now(), "evidence": "measured",
        "goal": GOAL, "results": results,
    }  # fmt: skip
    print(json.dumps(document))


if __name__ == "__main__":
    main()
