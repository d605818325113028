"""Architectural bytes of a sequence: exact and engine-free; windows stop growing, states are constant.

What an engine takes from its pool for the same sequence is in `reserved.py`. Both take the geometry of the whole
model or of one rank (`ranks.py`), so parallelism needs no formulas of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.sizes.dtypes import KVDtype

__all__ = ["Growth", "architectural_bytes", "growth", "layer_bytes", "least", "own_dtype"]

Tokens = TypeVar("Tokens", int, NDArray[np.int64])


def layer_bytes(layer: LayerKV, kv: KVDtype, index: KVDtype) -> tuple[int, int]:
    """Return bytes that a layer keeps for each token of its window, and for each entry of `entry_tokens` tokens."""
    if layer.shares_layer is not None:
        return 0, 0
    token = layer.num_kv_heads * (kv.vector_bytes(layer.k_dim) + kv.vector_bytes(layer.v_dim))
    return token, kv.vector_bytes(layer.compressed_dim) + index.vector_bytes(layer.index_dim)


@dataclass(frozen=True, slots=True)
class Growth:
    """How a sequence's bytes grow with its length: ``a n + sum b min(n, w) + sum c floor(n / r) + s``.

    Parameters
    ----------
    per_token : int
        Bytes that every token adds (a).
    windows : tuple of (int, int)
        Pairs (b, w): bytes a token, up to w tokens.
    entries : tuple of (int, int)
        Pairs (c, r): bytes for every r tokens.
    state : int
        Bytes at any length (s).
    """

    per_token: int
    windows: tuple[tuple[int, int], ...]
    entries: tuple[tuple[int, int], ...]
    state: int

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds, on average, while every window still has room."""
        windows = sum(size for size, _ in self.windows)
        return self.per_token + windows + sum(size // tokens for size, tokens in self.entries)

    def bytes(self, context_tokens: Tokens) -> Tokens:
        """Bytes after `context_tokens` tokens; a number or an array of them, exact either way."""
        total = context_tokens * self.per_token + self.state
        for size, window in self.windows:
            total = total + size * least(context_tokens, window)
        for size, tokens in self.entries:
            total = total + size * (context_tokens // tokens)
        return total


def least(tokens: Any, window: Any) -> Any:
    """Return the smaller one, of a number or of each number of an array."""
    return np.minimum(tokens, window) if isinstance(tokens, np.ndarray) else min(tokens, window)


def growth(geometry: KVGeometry, kv: KVDtype | None = None, index: KVDtype | None = None) -> Growth:
    """How the architectural bytes of a sequence grow.

    Parameters
    ----------
    geometry : KVGeometry
        Of the model, or of one rank.
    kv : KVDtype, optional
        Storage of K, V and latent vectors; default: the geometry's own dtype, without scales.
    index : KVDtype, optional
        Storage of indexer keys; default: as `kv`.
    """
    kv = kv or own_dtype(geometry)
    windows: Counter[int] = Counter()
    entries: Counter[int] = Counter()
    for layer, times in Counter(geometry.layers).items():
        token, entry = layer_bytes(layer, kv, index or kv)
        windows[layer.window_tokens or 0] += times * token
        entries[layer.entry_tokens] += times * entry
    always = windows.pop(0, 0) + entries.pop(1, 0)
    return Growth(
        always,
        tuple((size, window) for window, size in sorted(windows.items()) if size),
        tuple((size, tokens) for tokens, size in sorted(entries.items()) if size),
        geometry.state_bytes,
    )


def architectural_bytes(
    geometry: KVGeometry, context_tokens: Tokens, kv: KVDtype | None = None, index: KVDtype | None = None
) -> Tokens:
    """Exact bytes of one sequence; see `growth` for the arguments. Source: reference configs, table of check numbers."""
    return growth(geometry, kv, index).bytes(context_tokens)


def own_dtype(geometry: KVGeometry) -> KVDtype:
    """Return the dtype that the model's config names, without scales."""
    return KVDtype("as the model", 8 * geometry.dtype_bytes)
