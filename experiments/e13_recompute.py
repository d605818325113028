"""What it takes to compute a block of 16 tokens again: at the end, inside with the prefix at hand, inside with nothing at hand.

SmolLM2 on one core, in turns, ratios first; beside it the time to copy the block's KV. Times are the core's, not the clock's, so
that other work on the machine counts little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from experiments.recordings import load, tokens_of
from experiments.study import Interval, Study, interval
from kvpager.analysis.recompute import full_prefix_flops, pass_flops
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.errors import InvariantError
from kvpager.evidence import Evidence
from kvpager.models import resolve

CLAIMS = ("interior-prefix", "gap-widens")
CONTEXTS, QUICK_CONTEXTS = (512, 1024, 2048, 4096), (256, 1024)
BLOCK, REPEATS = 16, 5
COPIES, ARENA_BLOCKS = 20, 200
"""KV of a block is copied so often at a time, from an arena that no cache holds."""
SAME = 1e-3
"""How far computed K and V may be from those that were there."""
MEASURED = (Evidence.MEASURED,)
Times = dict[str, list[float]]


def run(study: Study) -> None:
    """Time all cases at all contexts, in turns."""
    contexts = QUICK_CONTEXTS if study.quick else CONTEXTS
    rows = study.once(f"{contexts} {REPEATS}", partial(_measure, study, contexts))
    last = contexts[-1]
    ratio = {
        name: {context: interval(_quotients(rows, context, *pair)) for context in contexts}
        for name, pair in {
            "missing": ("missing", "interior"), "tail": ("interior", "tail"), "floor": ("tail", "decode"), "fetch": ("tail", "copy"),
        }.items()
    }  # fmt: skip
    kept = Interval(*(1 / end for end in (ratio["missing"][last].value, ratio["missing"][last].high, ratio["missing"][last].low)))
    study.find(
        "interior-prefix",
        CONTRADICTED if kept.high < 0.99 else SUPPORTED if kept.low > 0.99 else INCONCLUSIVE,
        f"with the KV before it at hand, the block at the middle of {last:,} tokens takes {kept.value:.3f} of the time of its whole "
        f"prefix, {ratio['tail'][last].value:.2f} of that of a block at the end, and gives the same K and V; only where the prefix "
        f"is gone too does it take {', '.join(f'{found.value:.0f}' for found in ratio['missing'].values())} times as long, at "
        f"contexts of {', '.join(f'{context:,}' for context in contexts)} (SmolLM2 on one core, {REPEATS} repeats)",
        value=kept.value, low=kept.low, high=kept.high, unit="x", labels=MEASURED,
    )  # fmt: skip
    study.sign("whole prefix − block alone", Interval(*(1 - end for end in (kept.value, kept.high, kept.low))))
    _gap(study, rows, contexts, ratio)


def _gap(study: Study, rows: list[dict[str, Any]], contexts: tuple[int, ...], ratio: dict[str, dict[int, Interval]]) -> None:
    last = contexts[-1]
    present, gone = ratio["tail"][last], interval(_quotients(rows, last, "missing", "tail"))
    study.find(
        "gap-widens",
        SUPPORTED if present.low > 1 and gone.low > 1 else CONTRADICTED if present.high < 1 and gone.high < 1 else INCONCLUSIVE,
        f"computing the last block of {last:,} tokens again takes {ratio['fetch'][last].value:.0f} times as long as copying its KV "
        f"in memory; for a block in the middle that gap is {present.value:.2f} times as wide if the KV before it is at hand, and "
        f"{gone.value:.0f} times if it is gone: it widens only where earlier KV is missing",
        value=gone.value, low=gone.low, high=gone.high, unit="x", labels=MEASURED,
    )  # fmt: skip
    study.sign("gap of an interior block with its prefix gone − gap of a tail block", Interval(*(end - 1 for end in gone)))
    first = contexts[0]
    growth = interval(a / b for a, b in zip(_times(rows, last, "tail"), _times(rows, first, "tail"), strict=True))
    told = "; ".join(f"{context:,}: {1000 * statistics.median(_times(rows, context, 'tail')):.0f} ms" for context in contexts)
    study.result(
        "recompute of 16 tokens on a small model",
        f"median time by tokens before them: {told}. From {first:,} to {last:,} it grows {growth.value:.2f} times, by operations "
        f"{_flops(last) / _flops(first):.2f} times: attention to the context is part of it. It takes "
        f"{ratio['floor'][last].value:.1f} times one decode step; a whole prefix of {last // 2:,} takes "
        f"{ratio['missing'][last].value:.0f} times as long as its last block, by operations "
        f"{_flops_of_prefix(last // 2) / _flops(last // 2):.0f} times: 16 tokens have to read all weights too",
        value=growth.value, low=growth.low, high=growth.high, unit="x", labels=MEASURED,
    )  # fmt: skip


def _shape() -> dict[str, float]:
    facts = resolve("smollm2")
    layer = facts.geometry.layers[0]
    params = facts.params_active or facts.params_total
    if params is None:
        raise InvariantError("model 'smollm2' states no parameters: its facts should")
    return {
        "active_params": params.value, "layers": len(facts.geometry.layers), "q_heads": facts.geometry.num_q_heads,
        "head_dim": layer.k_dim,
    }  # fmt: skip


def _flops(prefix: int) -> float:
    return float(pass_flops(BLOCK, prefix, **_shape()))


def _flops_of_prefix(position: int) -> float:
    return float(full_prefix_flops(position, BLOCK, **_shape()))


def _times(rows: list[dict[str, Any]], context: int, case: str) -> list[float]:
    return [row["seconds"] for row in rows if (row["context_tokens"], row["case"]) == (context, case)]


def _quotients(rows: list[dict[str, Any]], context: int, case: str, other: str) -> list[float]:
    return [a / b for a, b in zip(_times(rows, context, case), _times(rows, context, other), strict=True)]


def _measure(study: Study, contexts: tuple[int, ...]) -> list[dict[str, Any]]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loaded = load("smollm2", study.work)
        tokens = torch.tensor([tokens_of("novel", loaded, study.work, contexts[-1] + BLOCK, 0, 0)])
        with torch.inference_mode():
            cases = {context: _cases(loaded.model, tokens, context) for context in contexts}
            rows = []
            for repeat in range(REPEATS + 1):  # the first warms up
                for context, of in cases.items():
                    for case, action in of.items():
                        begin = time.thread_time()
                        action()
                        seconds = (time.thread_time() - begin) / (COPIES if case == "copy" else 1)
                        if repeat:
                            rows.append({"context_tokens": context, "case": case, "repeat": repeat, "seconds": seconds})
            return rows
    finally:
        torch.set_num_threads(threads)


def _cases(model: Any, tokens: Any, context: int) -> dict[str, Callable[[], object]]:
    """What is timed at one context; whatever a pass adds to a cache is cut off again, cheaply, while the clock runs."""
    from transformers import DynamicCache

    whole, half, middle = DynamicCache(), DynamicCache(), context // 2
    model(tokens[:, : context + BLOCK], cache=whole, logits_to_keep=1)
    for layer, part in enumerate(whole.layers):
        half.update(part.keys[:, :, :middle].clone(), part.values[:, :, :middle].clone(), layer)
    there = [
        (part.keys[:, :, middle : middle + BLOCK].clone(), part.values[:, :, middle : middle + BLOCK].clone())
        for part in whole.layers
    ]
    whole.crop(-BLOCK)

    def forward(cache: Any, start: int, count: int) -> None:
        model(tokens[:, start : start + count], cache=cache, logits_to_keep=1)
        cache.crop(-count)

    model(tokens[:, middle : middle + BLOCK], cache=half, logits_to_keep=1)
    for (keys, values), part in zip(there, half.layers, strict=True):
        apart = max(
            float((part.keys[:, :, middle:] - keys).abs().max()), float((part.values[:, :, middle:] - values).abs().max())
        )
        if apart > SAME * max(1.0, float(keys.abs().max())):
            raise InvariantError(f"K and V of an interior block came out {apart:.2g} apart from those that were there")
    half.crop(-BLOCK)
    size = sum(part.numel() * part.element_size() for pair in there for part in pair)
    arena, room, rng = np.ones((ARENA_BLOCKS, size), np.uint8), np.ones(size, np.uint8), np.random.default_rng(0)

    def copy() -> None:
        for place in rng.integers(0, ARENA_BLOCKS, COPIES).tolist():
            np.copyto(room, arena[place])

    return {
        "tail": partial(forward, whole, context, BLOCK),
        "interior": partial(forward, half, middle, BLOCK),
        "decode": partial(forward, whole, context, 1),
        "missing": lambda: model(tokens[:, : middle + BLOCK], cache=DynamicCache(), logits_to_keep=1),
        "copy": copy,
    }
