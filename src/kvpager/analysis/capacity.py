"""What fits: bytes of KV, users, the parts of HBM, score metadata.

Pure and vectorised: every argument is a number or a numpy array, arrays broadcast. Bytes are exact integers as
long as the inputs are (float64 holds them exactly up to 9 PB).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Values",
    "binding_constraint",
    "block_bytes",
    "crossover_tokens",
    "hbm_needed_bytes",
    "hbm_slack_bytes",
    "kv_bytes",
    "kv_share_of_weights",
    "metadata_bytes",
    "metadata_traffic_bytes",
    "sink_bytes",
    "users_that_fit",
]

Values = float | NDArray[np.float64]
"""A number, or an array of them; arrays broadcast."""


def kv_bytes(
    context_tokens: Values, bytes_per_token: Sequence[float], window_tokens: Sequence[float], state_bytes: Values = 0.0
) -> Values:
    """Architectural KV bytes of one sequence.

    Layers of the same window form a group: each adds ``bytes_per_token * min(context, window)``.

    Parameters
    ----------
    context_tokens : float or array
        Tokens in the cache.
    bytes_per_token, window_tokens : sequence of float
        By group of layers; a window of ``inf`` is full attention.
    state_bytes : float or array
        What a sequence keeps whatever its length (linear attention, Mamba).

    Returns
    -------
    float or array
        Bytes.

    Notes
    -----
    Source: note 000 part 3 and note 004 paragraph 2 for full attention; windows and states as in the models' configs.
    """
    total = np.asarray(state_bytes, dtype=np.float64)
    for of_token, window in zip(bytes_per_token, window_tokens, strict=True):
        total = total + of_token * np.minimum(context_tokens, window)
    return total


def block_bytes(bytes_per_token: Values, block_tokens: Values = 16.0) -> Values:
    """Bytes of one block over all layers (note 004 paragraph 2: 16 tokens x 320 KiB = 5 MiB)."""
    return bytes_per_token * block_tokens


def hbm_needed_bytes(weights_bytes: Values, activations_bytes: Values, kv_bytes_per_user: Values, users: Values) -> Values:
    """HBM that `users` sequences need if nothing is tiered: the memory wall (note 000 part 5)."""
    return weights_bytes + activations_bytes + users * kv_bytes_per_user


def users_that_fit(
    usable_bytes: Values,
    kv_bytes_per_user: Values,
    weights_bytes: Values = 0.0,
    activations_bytes: Values = 0.0,
    reserved_bytes: Values = 0.0,
) -> Values:
    """Whole sequences whose KV a memory holds beside what else lives there; never below 0.

    Parameters
    ----------
    usable_bytes : float or array
        What the device exposes, not what is marketed.
    kv_bytes_per_user : float or array
        KV of one sequence, > 0.
    weights_bytes, activations_bytes, reserved_bytes : float or array
        What is taken before (0 in a DRAM or NVMe tier).

    Returns
    -------
    float or array
        Users, a whole number.

    Notes
    -----
    ``floor((usable - weights - activations - reserved) / KV)``. Source: note 000 part 5; mission row 3.
    """
    left = usable_bytes - weights_bytes - activations_bytes - reserved_bytes
    whole: Values = np.maximum(np.floor(np.divide(left, kv_bytes_per_user)), 0.0)
    return whole


def binding_constraint(limits: Sequence[Values]) -> tuple[Values, NDArray[np.intp]]:
    """Smallest of several limits, and which it is.

    Parameters
    ----------
    limits : sequence of float or array
        Users that each constraint allows, e.g. HBM, DRAM, NVMe, service level.

    Returns
    -------
    tuple of (float or array, int array)
        The smallest limit and its position in `limits`; the first of equals.
    """
    table = np.stack(np.broadcast_arrays(*limits))
    return table.min(axis=0), table.argmin(axis=0)


def hbm_slack_bytes(usable_bytes: Values, *parts_bytes: Values) -> Values:
    """What the parts of HBM leave free; negative if they do not fit (note 000 part 10: 140 + 5 + 10 + 37 of 192 GB)."""
    return usable_bytes - sum(parts_bytes)


def metadata_bytes(
    users: Values, context_tokens: Values, layers: Values, kv_heads: Values, entry_bytes: Values = 8.0, block_tokens: Values = 1.0
) -> Values:
    """Bytes of score metadata: one entry a (user, block, layer, KV head).

    The note's 640 MiB is one sequence of 131,072 tokens, 80 layers, 8 KV heads, 8 bytes, scored token by token.
    Source: note 000 part 10 with the entry size reconstructed; mission row 16.
    """
    blocks = np.ceil(np.divide(context_tokens, block_tokens))
    total: Values = users * blocks * layers * kv_heads * entry_bytes
    return total


def metadata_traffic_bytes(metadata: Values) -> Values:
    """Bytes moved by updating every entry once: each is read and written (mission row 16)."""
    return 2.0 * metadata


def sink_bytes(sink_tokens: Values, bytes_per_token: Values, users: Values = 1.0, block_tokens: Values = 16.0) -> Values:
    """Bytes that pinned sink tokens take, rounded up to whole blocks (note 000 parts 10 and 14; mission row 9)."""
    total: Values = users * np.ceil(np.divide(sink_tokens, block_tokens)) * block_tokens * bytes_per_token
    return total


def crossover_tokens(weights_bytes: Values, bytes_per_token: Values) -> Values:
    """Resident tokens at which KV takes as much memory as the weights (note 004 paragraph 10)."""
    return weights_bytes / bytes_per_token


def kv_share_of_weights(kv: Values, weights_bytes: Values) -> Values:
    """KV bytes as a share of the weights' (note 004 table 3)."""
    return kv / weights_bytes
