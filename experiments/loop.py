"""A closed loop: the live cache with a real selector, teacher-forced or on its own, logged; and what its log tells.

What a run asks for does not depend on policy or size, so one log gives the exact counts of every policy (law 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import HBM
from kvpager.replay.run import replay_run
from kvpager.traces.run import Event
from kvpager.traces.runstore import read_run

if TYPE_CHECKING:
    from kvpager.live.transformers import LoadedModel

__all__ = ["READ", "SELECTOR", "against_dense", "logged", "of_log"]

READ = 0.10
SELECTOR = f"key_bound:rerank=4,read_fraction={READ}"
"""It keeps the keys in fast memory to rank exactly among four times as many blocks; what comes and goes is the values."""


def logged(
    model: LoadedModel, tokens: Sequence[int], context: int, log: Path, *, policy: str, hbm_fraction: float, new_tokens: int = 0
) -> dict[str, Any]:
    """Prefill `context` of `tokens` exactly, then read the rest selectively, token by token; log the run.

    Parameters
    ----------
    model : LoadedModel
        In float32.
    tokens : sequence of int
        Context and continuation.
    context : int
        Tokens to prefill.
    log : Path
        Run recording to write.
    policy : str
        Of the live run; its log predicts the others.
    hbm_fraction : float
        Of what comes and goes, values here: units in HBM.
    new_tokens : int
        Generate so many greedily, instead of reading the rest of `tokens`.

    Returns
    -------
    dict
        ``tokens`` that were read or made after the context, ``logits`` after each (float32 [n, vocabulary]; none where
        tokens were made), and what the live run counted itself.
    """
    from kvpager.live.opening import open_store, plan_budget
    from kvpager.live.transformers.runner import TieredRunner

    length = new_tokens or len(tokens) - context
    share = f"{100 * (1 + hbm_fraction) / 2:.9g}%"  # the keys stay: half of the payload
    budget = plan_budget(model.geometry, context_tokens=context + length, hbm=share, selector=SELECTOR)
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="kv-", dir=log.parent) as folder,
        open_store(
            model, folder, budget, policy=policy, selector=SELECTOR, lockstep=True, record=log, overwrite=True,
            command="python -m experiments E16",
        ) as store,
    ):  # fmt: skip
        runner = TieredRunner(model, store, measure_every=8)
        runner.start(tokens[:context])
        if new_tokens:
            made, logits = runner.generate(new_tokens), np.empty((0, 0), np.float32)
        else:
            made, logits = list(tokens[context:]), runner.feed(tokens[context:])
        found = {
            "block_hit_ratio": store.counts.block_hit_ratio,
            "read_mass": runner.facts()["read_mass"],
            "hbm_units": budget.hbm_units,
        }
        runner.close()
    return {"tokens": made, "logits": logits, **found}


def against_dense(
    model: LoadedModel, context: Sequence[int], tokens: Sequence[int], logits: NDArray[np.float32]
) -> dict[str, Any]:
    """Divergence, perplexity and next tokens of selective `logits` against dense attention on the same `tokens`."""
    from kvpager.evaluate.dense import DenseRunner

    dense = DenseRunner(model)
    dense.start(context)
    p, q = (_log_softmax(one) for one in (dense.feed(tokens), logits))
    target = np.asarray(tokens[1:])
    rows = np.arange(len(target))
    return {
        "kl_mean": float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        "same_next_token": float((p.argmax(axis=1) == q.argmax(axis=1)).mean()),
        "perplexity_change": float(np.exp(p[rows, target].mean() - q[rows, target].mean()) - 1),
    }


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def of_log(log: Path, policy: str, hbm_fraction: float, warmup: int) -> dict[str, Any]:
    """Replay a run with another policy and size; return ratios after `warmup` steps, and hits by step.

    Returns
    -------
    dict
        ``block_hit_ratio``; ``mass_hit_ratio`` and ``p5_head_mass``, of the mass of what was read (nobody knows that of the
        rest); ``moves_share``, units newly kept a step over all units; ``hits`` and ``accesses`` of every step.
    """
    recording = read_run(log)
    layers, heads = len(recording.header.layers), recording.header.num_kv_heads
    asked: list[tuple[int, int]] = []
    held, read = np.zeros((2, layers * heads))
    kept = 0

    def sink(event: Event) -> None:
        nonlocal kept
        if event.kind != "ask" or event.grant is None:
            return
        hit = event.grant.tier <= HBM
        asked.append((int(event.asks[hit].sum()), int(event.asks.sum())))
        if len(asked) <= warmup * layers:
            return
        kept += sum(len(move.units) for move in event.moves if move.why == "keep")
        if event.seen is not None:
            units, mass = event.seen.units, event.seen.mass.astype(np.float64)
            head = event.tick.layer * heads + units % heads
            here = ~np.isin(units, event.units[~hit])  # what was read but not asked for is open, hence in HBM
            np.add.at(read, head, mass)
            np.add.at(held, head[here], mass[here])

    replay_run(recording, policy=policy, hbm_units=int(hbm_fraction * recording.units), sink=sink)
    by_step = np.asarray(asked).reshape(-1, layers, 2).sum(axis=1)
    counted = by_step[warmup:].sum(axis=0)
    per_head = held / np.maximum(read, 1e-9)
    return {
        "policy": policy,
        "hbm_fraction": hbm_fraction,
        "steps": len(by_step) - warmup,
        "block_hit_ratio": counted[0] / counted[1],
        "mass_hit_ratio": float(held.sum() / read.sum()),
        "p5_head_mass": float(np.percentile(per_head, 5)),
        "moves_share": kept / (len(by_step) - warmup) / recording.units,
        "hits": by_step[:, 0].tolist(),
        "accesses": by_step[:, 1].tolist(),
    }
