"""An attention recording in memory: what replay, analysis and report read. No file format here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import KVGeometry

__all__ = ["ABSOLUTE_EDGES", "RELATIVE_BINS", "SPECIALS", "Header", "Recording"]

SPECIALS = ("first_1", "first_4", "first_100", "last_200", "newest_10_percent")
"""Token sets whose attention mass is recorded per query head."""

RELATIVE_BINS = 20
"""Bins of relative position: bin 0 holds the oldest 5 % of the tokens, bin 19 the newest."""

ABSOLUTE_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Edges of distance in tokens: bin i holds distances in ``[edge[i], edge[i+1])``; the last bin is open."""


@dataclass(frozen=True)
class Header:
    """Where a recording comes from and how to read it."""

    model: str
    weights_sha256: str
    geometry: KVGeometry
    layers: tuple[int, ...]
    """Model layers on the layer axis: those with full attention."""
    num_q_heads: int
    num_kv_heads: int
    block_size: int
    context_tokens: int
    """Prefilled tokens; step t attends to ``context_tokens + t + 1`` tokens, its own included."""
    mode: str
    """``"forced"`` (the text's own continuation) or ``"free"`` (the model's)."""
    fold: str
    """How a query group becomes its KV head: ``"mean"``."""
    text: str
    """Name of the text; never its content."""
    tokens_sha256: str
    summary: str = "key_bounds"
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    recorded: str = ""
    """Date and time, UTC, ISO 8601."""


@dataclass(frozen=True)
class Recording:
    """What a model's attention read while decoding.

    Attributes
    ----------
    header : Header
        Provenance and shape.
    mass : float16 [steps, layer, kv_head, block]
        Attention probability, group-folded by mean and summed over the block's tokens; 0 for blocks
        that do not exist yet. Sums to 1 over blocks.
    prefill_mass : float16 [queries, layer, kv_head, block]
        The same for the last queries of the prefill, oldest first.
    bound : float16 [steps, layer, kv_head, block]
        Upper bound of the logit q·k/sqrt(d) by the block's per-channel key minima and maxima, mean
        over the group; ``-inf`` for blocks that do not exist yet.
    query_cosine : float16 [steps, layer, q_head]
        Cosine of each query with the one before it.
    special, relative, absolute : float16 [steps, layer, q_head, ...]
        Token-level mass on `SPECIALS`, `RELATIVE_BINS` and distance bins `ABSOLUTE_EDGES`.
    """

    header: Header
    mass: NDArray[np.float16]
    prefill_mass: NDArray[np.float16]
    bound: NDArray[np.float16] | None = None
    query_cosine: NDArray[np.float16] | None = None
    special: NDArray[np.float16] | None = None
    relative: NDArray[np.float16] | None = None
    absolute: NDArray[np.float16] | None = None

    @property
    def steps(self) -> int:
        """Recorded decode steps."""
        return int(self.mass.shape[0])

    @property
    def blocks(self) -> int:
        """Blocks that exist after the last step, the open one included."""
        return int(self.mass.shape[3])

    @property
    def kv_bytes(self) -> int:
        """Payload of all blocks of all recorded layers, in bytes: what a share is a share of."""
        return self.blocks * len(self.header.layers) * self.header.num_kv_heads * self.head_block_bytes

    @property
    def head_block_bytes(self) -> int:
        """Payload of one KV head's block in one layer."""
        layer = self.header.geometry.layers[self.header.layers[0]]
        return self.header.block_size * (layer.k_dim + layer.v_dim) * self.header.geometry.dtype_bytes

    def open_block(self, step: int) -> int:
        """Number of the block that step `step` writes to."""
        return (self.header.context_tokens + step) // self.header.block_size
