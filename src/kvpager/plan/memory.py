"""Where the bytes of one replica go, and the time to compute a whole context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from kvpager.analysis import capacity, recompute
from kvpager.plan.assumptions import Assumptions
from kvpager.plan.evaluate import Evaluator
from kvpager.plan.load import Load, Machine

__all__ = ["Memory", "memory_of", "prefill_time"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Memory(Generic[T]):
    """Where the bytes of one replica go."""

    weights_bytes: T
    kv_bytes_per_user: T
    full_kv_bytes_per_user: T
    local_kv_bytes_per_user: T
    metadata_bytes_per_user: T
    pinned_bytes_per_user: T
    hbm_left_bytes: T
    """After weights and activations, before any user."""


def memory_of(
    of: Evaluator[T], load: Load, machine: Machine[T], assumed: Assumptions, context: T, tp: int, tiered: bool
) -> Memory[T]:
    """Bytes of weights, KV and what tiering itself needs, of one replica."""
    weights = of.step(
        "weights_bytes",
        "B",
        "params x bytes of a weight",
        lambda params, each: params * each,
        of.given(load.params),
        of.given(load.weight_bytes_per_param),
        source="note 000 part 4",
    )
    full_size = load.full_bytes_per_token
    full = of.step(
        "full_kv_bytes_per_user",
        "B",
        f"{full_size:,.0f} B a token x context_tokens",
        lambda tokens: capacity.kv_bytes(tokens, [full_size], [np.inf]),
        context,
        source="layers x KV heads x dims x 2 x bytes: note 000 part 3",
    )
    sizes = [load.entry_bytes_per_token, *(group.bytes_per_token for group in load.local)]
    windows = [np.inf, *(group.window_tokens for group in load.local)]
    local = of.step(
        "local_kv_bytes_per_user",
        "B",
        "windows: bytes a token x min(context, window); index keys; states",
        lambda tokens: capacity.kv_bytes(tokens, sizes, windows, load.state_bytes),
        context,
        source="the model's config",
    )
    both = of.step("kv_bytes_per_user", "B", "full + local", lambda a, b: a + b, full, local)
    metadata, pinned = _pinned(of, load, assumed, context, local, tiered)
    left = of.step(
        "hbm_left_bytes",
        "B",
        f"hbm - weights - {tp} x activations",
        lambda hbm, taken, work: hbm - taken - tp * work,
        machine.hbm_bytes,
        weights,
        of.given(assumed.activations_bytes),
        source="note 000 part 5",
    )
    return Memory(weights, both, full, local, metadata, pinned, left)


def _pinned(of: Evaluator[T], load: Load, assumed: Assumptions, context: T, local: T, tiered: bool) -> tuple[T, T]:
    """Score metadata of a user, and all that must stay in HBM for one."""
    full_size = load.full_bytes_per_token
    metadata = of.step(
        "metadata_bytes_per_user",
        "B",
        f"blocks x {load.full_layers} layers x {load.kv_heads} KV heads x entry_bytes",
        lambda tokens, entry, block: (
            float(tiered) * capacity.metadata_bytes(1.0, tokens, load.full_layers, load.kv_heads, entry, block)
        ),
        context,
        of.given(assumed.entry_bytes),
        of.given(assumed.block_tokens),
        source="mission row 16; note 000 part 10",
    )
    pinned = of.step(
        "pinned_bytes_per_user",
        "B",
        "sink tokens in whole blocks + metadata + KV of windows and states",
        lambda tokens, block, meta, rest: float(tiered) * capacity.sink_bytes(tokens, full_size, 1.0, block) + meta + rest,
        of.given(assumed.sink_tokens),
        of.given(assumed.block_tokens),
        metadata,
        local,
        source="note 000 part 10",
    )
    return metadata, pinned


def prefill_time(of: Evaluator[T], load: Load, machine: Machine[T], memory: Memory[T], assumed: Assumptions, context: T) -> T:
    """Time to compute a whole context from nothing: the quadratic term, and never less than reading the weights."""
    operations = of.step(
        "prefill_flops",
        "FLOP",
        f"2 active_params n + 4 x {load.q_heads} query heads x dim x layers x (query, key) pairs",
        load.pass_flops,
        of.given(load.active_params),
        context,
        source="mission row 47",
    )
    return of.step(
        "prefill_s",
        "s",
        "max(prefill_flops / (peak x mfu), weights / (hbm rate x efficiency))",
        lambda work, peak, mfu, weights, rate, good: recompute.recompute_s(
            work, peak, mfu, weights, 0.0, rate * good, rate * good
        ),
        operations,
        machine.flops_per_s,
        of.given(assumed.mfu),
        memory.weights_bytes,
        machine.hbm_bytes_per_s,
        machine.hbm_efficiency,
        source="mission row 47",
    )
