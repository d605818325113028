"""What a key summary is, and what all of them share: rows that are found by block, grow, and are used again.

One summary serves all sequences of a cache. It knows blocks by their number in the block table, never by sequence. The
arrays of a layer are ``[kv_heads, rows, width]``; a block has the same row in all layers.
"""

from __future__ import annotations

import heapq
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput, InvariantError
from kvpager.registry import Registry

__all__ = ["SUMMARIES", "ChannelScale", "CodedSummary", "Rows", "Summary", "group_mass"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_KINDS: dict[int, type[np.generic]] = {32: np.float32, 16: np.uint16, 8: np.uint8, 4: np.uint8}

SUMMARIES: Registry[Callable[..., Summary]] = Registry("summaries", "kvpager.live.summaries")


class Summary(Protocol):
    """Summaries of the complete blocks' keys; made as ``SUMMARIES[name](layers, kv_heads, k_dim, block_size)``."""

    bytes_per_block: float
    """Of one (layer, KV head, block)."""
    fixed_bytes: int
    """Of what does not grow, all layers together."""

    def put(self, layer: int, blocks: Ids, keys: Floats) -> None:
        """Take the keys, float32 ``[n, kv_heads, block_size, k_dim]``, of complete blocks; those known are overwritten."""
        ...

    def score(self, layer: int, query: Floats, blocks: Ids) -> Floats:
        """Score `blocks`, float32 ``[kv_heads, n]``, for a scaled query ``[kv_heads, group, k_dim]``; higher = read."""
        ...

    def drop(self, blocks: Ids) -> None:
        """Forget `blocks`; their room is used again. Blocks that were never put are passed over."""
        ...

    def take(self, blocks: Ids) -> dict[str, NDArray[Any]]:
        """Return all that is known of `blocks`, as arrays that `give` accepts."""
        ...

    def give(self, blocks: Ids, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore what `take` returned, under new block numbers."""
        ...


class Rows:
    """Which row describes which block of the table; the lowest free row is used first."""

    def __init__(self) -> None:
        self.count = 0
        """Rows ever used: what arrays must have room for."""
        self._row = np.full(0, -1, np.int32)
        self._free: list[int] = []

    def add(self, blocks: Ids) -> Ids:
        """Return the rows of `blocks`, new ones for those that have none."""
        most = int(blocks.max(initial=-1)) + 1
        if most > len(self._row):
            more = max(most, 2 * len(self._row)) - len(self._row)
            self._row = np.concatenate([self._row, np.full(more, -1, np.int32)])
        for block in blocks[self._row[blocks] < 0].tolist():
            if self._free:
                self._row[block] = heapq.heappop(self._free)
            else:
                self._row[block], self.count = self.count, self.count + 1
        return self._row[blocks]

    def of(self, blocks: Ids) -> slice | Ids:
        """Return the rows of `blocks`, as a slice where they are neighbours in order."""
        known = bool(len(blocks) == 0 or blocks.max() < len(self._row))
        rows = self._row[blocks] if known else np.full(1, -1, np.int32)
        if rows.min(initial=0) < 0:
            raise InvariantError("a block without a key summary was asked for its score: put its keys first")
        if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            return slice(int(rows[0]), int(rows[-1]) + 1)
        return rows

    def drop(self, blocks: Ids) -> None:
        """Free the rows of `blocks`."""
        for block in blocks[blocks < len(self._row)].tolist():
            if self._row[block] >= 0:
                heapq.heappush(self._free, int(self._row[block]))
                self._row[block] = -1


class ChannelScale:
    """A linear code for each (layer, KV head, channel): ``value ≈ low + step * code``.

    The range is that of the first values; it widens when later ones fall out of it by more than half a step, and whoever
    owns codes encodes them anew.

    Parameters
    ----------
    layers, kv_heads, k_dim : int
        Shape.
    codes : int
        How many codes there are, e.g. 16 for 4 bits.
    outwards : bool
        Values are rounded outwards: nothing may fall out of the range.
    """

    MARGIN = 0.125
    """Of the range, added on the side where it widens, so that it does not widen at each block."""

    def __init__(self, layers: int, kv_heads: int, k_dim: int, codes: int, *, outwards: bool = False) -> None:
        self.top, self._slack, self._pad = codes - 1, np.float32(not outwards) / 2, np.float32(1e-5 * outwards)
        self.low: Floats = np.zeros((layers, kv_heads, k_dim), np.float32)
        self.step: Floats = np.zeros_like(self.low)

    def widen(self, layer: int, values: Floats) -> NDArray[np.bool_]:
        """Make room for `values` ``[kv_heads, n, k_dim]``; return which channels changed, ``[kv_heads, k_dim]``."""
        low, step = self.low[layer], self.step[layer]
        high = low + step * self.top
        least, most = values.min(1), values.max(1)
        if not step.any():
            self._set(layer, least, most)
            return np.zeros(low.shape, np.bool_)
        below, above = least < low - step * self._slack, most > high + step * self._slack
        changed: NDArray[np.bool_] = below | above
        if changed.any():
            extra = self.MARGIN * (np.maximum(most, high) - np.minimum(least, low))
            self._set(layer, np.where(below, least - extra, low), np.where(above, most + extra, high), changed)
        return changed

    def _set(self, layer: int, low: Floats, high: Floats, changed: NDArray[np.bool_] | None = None) -> None:
        where = np.ones(low.shape, np.bool_) if changed is None else changed
        pad = (high - low) * self._pad
        low, step = low - pad, np.maximum((high - low + 2 * pad) / self.top, np.float32(1e-12))
        self.low[layer], self.step[layer] = np.where(where, low, self.low[layer]), np.where(where, step, self.step[layer])

    def adopt(self, layer: int, low: Floats, step: Floats) -> bool:
        """Take another summary's range if there is none yet; return whether codes of that range are valid here."""
        if not self.step[layer].any():
            self.low[layer], self.step[layer] = low, step
        return bool((self.low[layer] == low).all() and (self.step[layer] == step).all())

    def encode(self, layer: int, values: Floats, rounding: str = "near") -> Bytes:
        """Return the codes of `values` ``[kv_heads, n, k_dim]``; rounded ``"near"``, ``"down"`` or ``"up"``."""
        low, step = self.low[layer][:, None], self.step[layer][:, None]
        scaled = (values - low) / step
        rounded = {"near": np.rint, "down": np.floor, "up": np.ceil}[rounding](scaled)
        if rounding != "near":  # the division's own rounding must not turn outwards into inwards
            over = (low + step * rounded > values) if rounding == "down" else (low + step * rounded < values)
            rounded += over * (-1 if rounding == "down" else 1)
        codes: Bytes = np.clip(rounded, 0, self.top).astype(np.uint8)
        return codes


class CodedSummary:
    """A few vectors for each block and KV head, each element in 32, 16 (bfloat16), 8 or 4 bits.

    8 and 4 bits are linear codes by channel; in 4 bits, two vectors share their bytes, the first in the low halves.

    Parameters
    ----------
    layers, kv_heads, k_dim, block_size : int
        Shape.
    vectors : dict of str to {"near", "up", "down"}
        Name of each vector, and how it is rounded in 8 bits.
    bits : int
        Of an element.
    """

    def __init__(self, layers: int, kv_heads: int, k_dim: int, block_size: int, vectors: dict[str, str], bits: int) -> None:
        if bits not in _KINDS or (bits == 4 and len(vectors) != 2):
            raise BadInput(f"key summaries of {bits} bits are not known: choose 32, 16 or 8, or 4 where there are two vectors")
        self.block_size, self.bytes_per_block = block_size, len(vectors) * k_dim * bits / 8
        self.compiled = k_dim % 8 == 0 and importlib.util.find_spec("numba") is not None
        """Whether scores are computed by `live.kernels.score`; otherwise by numpy."""
        self.rows = Rows()
        self._bits, self._vectors, self._shape = bits, vectors, (kv_heads, k_dim)
        self._arrays = [
            {name: np.zeros((kv_heads, 0, k_dim), _KINDS[bits]) for name in (vectors if bits > 4 else ["packed"])}
            for _ in range(layers)
        ]
        self._scales = {
            name: ChannelScale(layers, kv_heads, k_dim, 1 << bits, outwards=rounding != "near")
            for name, rounding in vectors.items()
            if bits <= 8
        }
        self.fixed_bytes = sum(scale.low.nbytes + scale.step.nbytes for scale in self._scales.values())

    def write(self, layer: int, blocks: Ids, values: dict[str, Floats]) -> None:
        """Write each vector's `values`, float32 ``[n, kv_heads, k_dim]``, n > 0."""
        rows = self.rows.add(blocks)
        self._grow(layer)
        for name, value in values.items():
            self._write(layer, name, rows, np.ascontiguousarray(value.transpose(1, 0, 2)))

    def product(self, layer: int, name: str, query: Floats, rows: slice | Ids) -> Floats:
        """Multiply `query` ``[kv_heads, group, k_dim]`` with a vector of each row: ``[kv_heads, group, n]``."""
        codes = self._codes(layer, name)[:, rows]
        if self._bits > 8:
            exact: Floats = np.matmul(query, _floats(codes).transpose(0, 2, 1))
            return exact
        low, step = self._scales[name].low[layer], self._scales[name].step[layer]
        scaled: Floats = np.matmul(query * step[:, None], codes.astype(np.float32).transpose(0, 2, 1))
        scaled += np.matmul(query, low[:, :, None])
        return scaled

    def stored(self, layer: int) -> tuple[tuple[NDArray[Any], ...], Any]:
        """Return a layer's arrays and what their codes stand for, as `kvpager.live.kernels.score` takes them."""
        codes = tuple((scale.low[layer], scale.step[layer]) for scale in self._scales.values())
        return tuple(self._arrays[layer].values()), codes or None

    def drop(self, blocks: Ids) -> None:
        """Forget `blocks`."""
        self.rows.drop(blocks)

    def take(self, blocks: Ids) -> dict[str, NDArray[Any]]:
        """Return the codes ``[layers, kv_heads, n, k_dim]`` of `blocks`, and the scales that belong to them."""
        rows = self.rows.of(blocks)
        taken = {name: np.stack([arrays[name][:, rows] for arrays in self._arrays]) for name in self._arrays[0]}
        for name, scale in self._scales.items():
            taken |= {f"{name}_low": scale.low.copy(), f"{name}_step": scale.step.copy()}
        return taken

    def give(self, blocks: Ids, arrays: dict[str, NDArray[Any]]) -> None:
        """Restore what `take` returned: bit for bit into an empty summary, encoded anew where the scales differ."""
        if not len(blocks):
            return
        rows = self.rows.add(blocks)
        for layer in range(len(self._arrays)):
            self._grow(layer)
            for name in self._vectors:
                codes = (
                    arrays[name][layer] if self._bits > 4 else _half(arrays["packed"][layer], name == next(iter(self._vectors)))
                )
                if self._bits > 8:
                    self._store(layer, name, rows, codes)
                    continue
                low, step = arrays[f"{name}_low"][layer], arrays[f"{name}_step"][layer]
                if self._scales[name].adopt(layer, low, step):
                    self._store(layer, name, rows, codes)
                else:
                    self._write(layer, name, rows, low[:, None] + step[:, None] * codes)

    def _write(self, layer: int, name: str, rows: Ids, values: Floats) -> None:
        """Encode `values` ``[kv_heads, n, k_dim]``; where the scale had to widen, all other rows anew."""
        if self._bits > 8:
            self._store(layer, name, rows, values if self._bits == 32 else _bfloat16(values))
            return
        scale, rounding = self._scales[name], self._vectors[name]
        low, step = scale.low[layer].copy(), scale.step[layer].copy()
        changed = scale.widen(layer, values)
        if changed.any():
            codes = self._codes(layer, name)
            again = scale.encode(layer, low[:, None] + step[:, None] * codes, rounding)
            self._store(layer, name, slice(None), np.where(changed[:, None], again, codes))
        self._store(layer, name, rows, scale.encode(layer, values, rounding))

    def _codes(self, layer: int, name: str) -> NDArray[Any]:
        if self._bits > 4:
            return self._arrays[layer][name]
        return _half(self._arrays[layer]["packed"], name == next(iter(self._vectors)))

    def _store(self, layer: int, name: str, rows: slice | Ids, codes: NDArray[Any]) -> None:
        if self._bits > 4:
            self._arrays[layer][name][:, rows] = codes
        else:
            packed, low = self._arrays[layer]["packed"], name == next(iter(self._vectors))
            packed[:, rows] = (packed[:, rows] & 0xF0) | codes if low else (packed[:, rows] & 0x0F) | (codes << 4)

    def _grow(self, layer: int) -> None:
        """Make room for every row, by doubling."""
        for name, array in self._arrays[layer].items():
            have = array.shape[1]
            if self.rows.count > have:
                grown = np.zeros((self._shape[0], max(self.rows.count, 2 * have, 16), self._shape[1]), array.dtype)
                grown[:, :have] = array
                self._arrays[layer][name] = grown


def _half(packed: Bytes, low: bool) -> Bytes:
    """Return the low or the high halves of bytes."""
    half: Bytes = packed & np.uint8(0x0F) if low else packed >> np.uint8(4)
    return half


def _bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; bits in the upper half of a float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _floats(values: NDArray[Any]) -> Floats:
    if values.dtype == np.float32:
        return values
    return (values.astype(np.uint32) << 16).view(np.float32)


def group_mass(logits: Floats) -> Floats:
    """Softmax of ``[kv_heads, group, n]`` over the blocks, mean over the group: ``[kv_heads, n]``."""
    weights = np.exp(logits - logits.max(axis=2, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=2, keepdims=True)
    mass: Floats = weights.mean(axis=1)
    return mass
