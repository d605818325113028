"""Time of a decode step and of a prefill: a roofline with two memory rates, plus the transfers that nothing hides.

Pure and vectorised. Weights and KV are read at different rates (attention kernels gather blocks), hence two bandwidths.
"""

from __future__ import annotations

import numpy as np

from kvpager.analysis.capacity import Values

__all__ = [
    "attention_flops",
    "causal_pairs",
    "compute_s",
    "exposed_s",
    "linear_flops",
    "memory_s",
    "naive_bandwidth_bytes_per_s",
    "prefetch_bytes",
    "prefetch_window_s",
    "prefetched_step_s",
    "prefill_s",
    "ridge_tokens",
    "step_s",
]


def causal_pairs(tokens: Values, prefix_tokens: Values = 0.0, window_tokens: Values = np.inf) -> Values:
    """(query, key) pairs of a causal pass over `tokens` positions that follow `prefix_tokens` cached ones.

    Position ``prefix + i`` (i = 1 … tokens) attends to ``min(prefix + i, window)`` keys, itself included.
    Without a window: ``n p + n (n + 1) / 2``. Source: mission row 47; reference formula of chunked prefill.
    """
    first = np.minimum(prefix_tokens, window_tokens)  # keys before the pass that still count
    growing = np.minimum(tokens, np.maximum(window_tokens - first, 0.0))  # positions that see one key more each
    steady = tokens - growing
    pairs: Values = (
        growing * first + growing * (growing + 1.0) / 2.0 + np.where(steady > 0.0, steady * _finite(window_tokens), 0.0)
    )
    return pairs


def _finite(window_tokens: Values) -> Values:
    finite: Values = np.where(np.isfinite(window_tokens), window_tokens, 0.0)
    return finite


def linear_flops(active_params: Values, tokens: Values) -> Values:
    """Floating-point operations of all matrix products but attention: 2 a parameter and token (note 004 table 2)."""
    return 2.0 * active_params * tokens


def attention_flops(pairs: Values, layers: Values, q_heads: Values, head_dim: Values) -> Values:
    """Operations of attention: ``4 H_q d`` a (query, key) pair and layer, 2 for the score and 2 for the value.

    Where K and V differ in width, or attention runs in a latent space, `head_dim` is the mean of both widths.
    Source: Kaplan et al. 2020 (arXiv 2001.08361) table 1, per pair instead of per full context.
    """
    return 4.0 * pairs * layers * q_heads * head_dim


def compute_s(flops: Values, peak_flops_per_s: Values, mfu: Values) -> Values:
    """Time to compute `flops` at a share `mfu` of the peak (note 004 table 2)."""
    return flops / (peak_flops_per_s * mfu)


def memory_s(weights_bytes: Values, kv_read_bytes: Values, weights_bytes_per_s: Values, kv_bytes_per_s: Values) -> Values:
    """Time to stream the weights once and the KV that attention reads, each at its own rate.

    Two rates because a step measured on one machine is ``a + b KV`` with 151 to 206 GB/s for weights and 61 to 66 GB/s
    for KV (DGX Spark, 2026). Source: mission row 41.
    """
    return weights_bytes / weights_bytes_per_s + kv_read_bytes / kv_bytes_per_s


def ridge_tokens(peak_flops_per_s: Values, memory_bytes_per_s: Values, weight_bytes_per_param: Values = 2.0) -> Values:
    """Tokens a pass needs to be bound by compute and not by reading weights (281 on a B200 in bf16).

    Source: Williams, Waterman, Patterson 2009 (roofline), with 2 operations a parameter and token.
    """
    return peak_flops_per_s * weight_bytes_per_param / (2.0 * memory_bytes_per_s)


def exposed_s(transfer_s: Values, overlap_s: Values, layers: Values = 1.0) -> Values:
    """Transfer time that no other work hides, over `layers` equal layers: ``layers x max(0, transfer - overlap)``.

    A layer's demand is known only when its query is; what is prefetched earlier counts as overlap. Call it once a
    group of equal layers and add. Source: mission row 41.
    """
    exposed: Values = layers * np.maximum(np.subtract(transfer_s, overlap_s), 0.0)
    return exposed


def step_s(compute: Values, memory: Values, exposed: Values = 0.0) -> Values:
    """Time of a decode step: ``max(compute, memory) + exposed`` (mission row 41)."""
    step: Values = np.maximum(compute, memory) + exposed
    return step


def prefetched_step_s(compute: Values, memory: Values, demand_s: Values, ahead_s: Values) -> Values:
    """Time of a step whose misses wait for the query, while prefetches of `ahead_s` hide behind its own time.

    What of them does not fit there is exposed like a miss, for they share one link. Into how many equal layers the step falls
    changes nothing. Source: mission rows 31 and 41.
    """
    return step_s(compute, memory, demand_s + exposed_s(ahead_s, np.maximum(compute, memory)))


def prefill_s(compute: Values, memory: Values) -> Values:
    """Time of a prefill or recompute pass: compute, but never less than reading the weights once (mission row 47)."""
    return step_s(compute, memory)


def prefetch_window_s(step: Values, busy_s: Values) -> Values:
    """Time of a step in which the link is free for prefetch: ``max(0, step - busy)`` (note 000 part 14; mission row 31)."""
    window: Values = np.maximum(np.subtract(step, busy_s), 0.0)
    return window


def prefetch_bytes(window_s: Values, bandwidth_bytes_per_s: Values, demand_bytes: Values = 0.0) -> Values:
    """Bytes that fit into the window beside the step's own demand; never below 0 (mission row 31)."""
    left: Values = np.maximum(window_s * bandwidth_bytes_per_s - demand_bytes, 0.0)
    return left


def naive_bandwidth_bytes_per_s(weights_bytes: Values, kv_read_bytes: Values, token_s: Values) -> Values:
    """Rate that reading weights and all KV once a token would take (note 000 part 4: dense, all remote; a strawman)."""
    return (weights_bytes + kv_read_bytes) / token_s
