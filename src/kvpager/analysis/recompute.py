"""Fetch a block or compute it again: what each costs, and where one overtakes the other. Pure and vectorised.

Four readings of "recompute", because they differ by orders of magnitude:

- *tail*: the last block; everything before it is cached;
- *missing_only*: an interior block whose earlier KV is all cached. It costs what a tail at its position costs, because
  a position needs the K and V before it and nothing after it; the engine must be able to run a pass with a hole;
- *suffix*: everything from the nearest cached prefix on: what today's engines do;
- *full prefix*: nothing is cached; the worst case.
"""

from __future__ import annotations

import numpy as np

from kvpager.analysis.capacity import Values
from kvpager.analysis.steptime import attention_flops, causal_pairs, compute_s, linear_flops, memory_s, prefill_s

__all__ = [
    "breakeven_bandwidth_bytes_per_s",
    "breakeven_tokens",
    "cheaper_to_fetch",
    "full_prefix_flops",
    "pass_flops",
    "ratio_to_fetch",
    "recompute_s",
    "suffix_flops",
]


def pass_flops(
    tokens: Values, prefix_tokens: Values, active_params: Values, layers: Values, q_heads: Values, head_dim: Values
) -> Values:
    """Operations of a forward pass over `tokens` positions behind `prefix_tokens` cached ones: a tail, or missing_only.

    ``2 P n + 4 H_q d L (n p + n (n + 1) / 2)``. Note 004 leaves the second term out: +94 % for 16 tokens at 50K.
    Source: mission rows 47 and 48.
    """
    pairs = causal_pairs(tokens, prefix_tokens)
    return linear_flops(active_params, tokens) + attention_flops(pairs, layers, q_heads, head_dim)


def suffix_flops(
    context_tokens: Values, cached_tokens: Values, active_params: Values, layers: Values, q_heads: Values, head_dim: Values
) -> Values:
    """Operations to rebuild everything from the nearest cached prefix to the context's end (mission row 48)."""
    return pass_flops(context_tokens - cached_tokens, cached_tokens, active_params, layers, q_heads, head_dim)


def full_prefix_flops(
    position: Values, tokens: Values, active_params: Values, layers: Values, q_heads: Values, head_dim: Values
) -> Values:
    """Operations to rebuild the block at `position` when nothing before it is cached (note 004 paragraph 5's case)."""
    return pass_flops(position + tokens, 0.0, active_params, layers, q_heads, head_dim)


def recompute_s(
    flops: Values,
    peak_flops_per_s: Values,
    mfu: Values,
    weights_bytes: Values,
    kv_read_bytes: Values,
    weights_bytes_per_s: Values,
    kv_bytes_per_s: Values,
    piggybacked: bool = False,
) -> Values:
    """Time to recompute, alone or inside a pass that runs anyway.

    Parameters
    ----------
    flops : float or array
        Operations.
    peak_flops_per_s, mfu : float or array
        Dense peak of the accelerator, and the share of it reached.
    weights_bytes, kv_read_bytes : float or array
        Read once by a pass of its own.
    weights_bytes_per_s, kv_bytes_per_s : float or array
        Memory rates.
    piggybacked : bool
        Whether the tokens join a batch that reads the weights anyway: then only the KV read is added, the cost is
        marginal, and it is never seen by itself.

    Returns
    -------
    float or array
        Seconds.

    Notes
    -----
    ``max(flops / (peak x MFU), (weights + KV) / bandwidth)``: 16 tokens alone on a B200 take 17.5 ms to read 140 GB of
    weights, whatever the MFU. Source: mission row 47.
    """
    read = memory_s(0.0 if piggybacked else weights_bytes, kv_read_bytes, weights_bytes_per_s, kv_bytes_per_s)
    return prefill_s(compute_s(flops, peak_flops_per_s, mfu), read)


def ratio_to_fetch(recompute: Values, fetch: Values) -> Values:
    """How many times longer recomputing takes than fetching (note 004 paragraph 7)."""
    return recompute / fetch


def cheaper_to_fetch(fetch: Values, recompute: Values) -> Values:
    """Whether fetching is at least as fast: the decision rule, ties to fetching (mission row 50)."""
    answer: Values = np.less_equal(fetch, recompute)
    return answer


def breakeven_bandwidth_bytes_per_s(size_bytes: Values, recompute: Values, pieces: Values = 1.0, t0_s: Values = 0.0) -> Values:
    """Rate above which fetching wins: ``bytes / (t_recompute - pieces x t0)``; infinite if fixed times alone exceed it.

    5 MiB against 9 ms: 0.59 GB/s. Source: mission row 50.
    """
    left = np.maximum(np.subtract(recompute, pieces * t0_s), 0.0)
    with np.errstate(divide="ignore"):
        rate: Values = np.divide(size_bytes, left)
    return rate


def breakeven_tokens(
    bytes_per_token: Values,
    bandwidth_bytes_per_s: Values,
    flops_per_s: Values,
    active_params: Values,
    layers: Values,
    q_heads: Values,
    head_dim: Values,
) -> Values:
    """Position from which on fetching a token's KV beats computing it in a long pass; 0 = everywhere.

    Solves ``(2 P + 4 H_q d L x) / flops_per_s = bytes_per_token / bandwidth`` for x: a token's linear cost is constant,
    its attention grows with its position. `flops_per_s` is peak times MFU. Fixed times are left out.
    Source: mission row 50, with the quadratic term of row 47.
    """
    affordable = bytes_per_token / bandwidth_bytes_per_s * flops_per_s
    position: Values = np.maximum((affordable - 2.0 * active_params) / (4.0 * layers * q_heads * head_dim), 0.0)
    return position
