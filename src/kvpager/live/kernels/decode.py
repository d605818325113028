"""Attention of one decode step over scattered blocks, on a CPU: numba loops around the vector code of `blocks`.

A slot holds one unit: keys dim-major ``[k_dim, 16]``, then values token-major ``[16, v_dim]``, float32, or bfloat16 as
uint16. Nothing is gathered or copied: a block is read where it lies, and asks for the next one on the way. Measured in
docs/log.md; the layout and the prefetch are the decisions of reference measurements told there.

Blocks are folded in the order in which they are named. `attend` does at once what `partials` and `fold` do in two
steps, by the same operations in the same order: equal bits, whatever was computed when.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.live.kernels.blocks import TOKENS, Shape
from kvpager.live.kernels.ir import BF16, F32
from kvpager.live.kernels.loops import Asks, compiled, compiled_shares
from kvpager.live.kernels.partials import Partials

__all__ = ["DecodeKernel", "supported"]

MAX_GROUP = 16
_NONE = np.empty(0, np.int32)
_NO_ASKS: Asks = (np.empty((0, 0), np.float32), np.empty((0, 0), np.uint8), _NONE, _NONE, _NONE, 0)
_NO_RESULTS = np.empty((0, 0), np.float32), np.empty(0, np.float32)


def supported(block_size: int, k_dim: int, v_dim: int, element: str, group: int) -> bool:
    """Whether `DecodeKernel` takes this shape."""
    whole = k_dim > 0 and v_dim > 0 and k_dim % 16 == 0 and v_dim % 16 == 0
    return block_size == TOKENS and whole and element in (F32, BF16) and 1 <= group <= MAX_GROUP


class DecodeKernel:
    """Attention of one query token to blocks in slots; compiled once a process and shape, at first use.

    Parameters
    ----------
    kv_heads : int
        KV heads of the layer.
    group : int
        Query heads a KV head.
    k_dim, v_dim : int
        Elements of a key and of a value, multiples of 16.
    block_size : int
        Tokens of a block: 16.
    element : str
        ``"float32"`` or ``"bfloat16"``.

    Raises
    ------
    BadInput
        A shape that is not `supported`.
    """

    def __init__(self, *, kv_heads: int, group: int, k_dim: int, v_dim: int, block_size: int, element: str) -> None:
        if not supported(block_size, k_dim, v_dim, element, group) or kv_heads < 1:
            raise BadInput(
                f"decode kernel: {kv_heads} KV heads, group {group}, k_dim {k_dim}, v_dim {v_dim}, block_size {block_size}, "
                f"{element}; it takes blocks of {TOKENS}, dims in sixteens, float32 or bfloat16, groups up to {MAX_GROUP}: "
                "use kernel_for, which falls back to the reference"
            )
        self.shape, self.kv_heads = Shape(group, k_dim, v_dim, element), kv_heads
        self.unit_bytes = TOKENS * (k_dim + v_dim) * self.shape.element_bytes

    def room(self, rows: int) -> Partials:
        """Return room for the partials of so many blocks, with nothing in it yet."""
        return Partials.empty(rows, self.shape.group, self.shape.v_dim)

    def partials(
        self,
        query: NDArray[np.float32],
        memory: NDArray[np.uint8],
        slots: Ids,
        heads: Ids,
        rows: Ids,
        out: Partials,
        tokens: Ids | None = None,
        softcap: float = 0.0,
        keys: Ids | None = None,
    ) -> None:
        """Attend to single blocks, in any order.

        Parameters
        ----------
        query : float32 [kv_heads * group, k_dim]
            Scaled.
        memory : uint8 [slots, unit_bytes]
            The arena.
        slots, heads, rows : int32 [n]
            For each block: its slot, its KV head, and its row in `out`.
        out : Partials
            Written.
        tokens : int32 [n], optional
            Valid tokens of each block, 1 to 16; default all.
        softcap : float
            Logits become ``softcap * tanh(logit / softcap)``; 0 = not.
        keys : int32 [n], optional
            Slots of the blocks' keys, where K and V stand apart: then a slot holds one of them, of the same size.
        """
        asks = self._asks(query, memory, slots, keys, tokens, softcap)
        slots = asks[2]
        heads, rows = np.ascontiguousarray(heads, np.int32), np.ascontiguousarray(rows, np.int32)
        if len(heads) != len(slots) or len(rows) != len(slots):
            raise BadInput(f"partials: {len(slots)} slots, {len(heads)} heads, {len(rows)} rows; give one of each a block")
        shape = self.shape
        if out.m.shape[1:] != (shape.group,) or out.l.shape != out.m.shape or out.acc.shape != (*out.m.shape, shape.v_dim):
            raise BadInput(f"partials: out has shapes {out.m.shape}, {out.acc.shape}; make it by Partials.empty")
        starts = np.array([0, len(slots)], np.int32)
        if not compiled(shape)(asks, starts, heads, rows, tuple(out), _NO_RESULTS):
            raise BadInput("partials: a slot, KV head, row or count of tokens lies outside its range")

    def fold(self, partials: Partials, rows: Ids, starts: Ids) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Fold partials.

        Parameters
        ----------
        partials : Partials
            What `partials` left.
        rows : int32 [n]
            Rows of KV head 0 in ascending order of their blocks, then those of head 1, and so on.
        starts : int32 [kv_heads + 1]
            Where each head begins in `rows`.

        Returns
        -------
        output : float32 [kv_heads * group, v_dim]
            Attention output; 0 for a head without blocks.
        mass : float32 [n]
            Each block's share of the probability, mean over the group, in the order of `rows`.
        """
        rows, starts = np.ascontiguousarray(rows, np.int32), self._starts(starts, len(rows))
        output, mass = self._results(len(rows))
        if not compiled(self.shape)(_NO_ASKS, starts, _NONE, rows, tuple(partials), (output, mass)):
            raise BadInput(f"fold: a row lies outside 0 to {len(partials.m) - 1}")
        return output, mass[: len(rows)]

    def attend(
        self,
        query: NDArray[np.float32],
        memory: NDArray[np.uint8],
        slots: Ids,
        starts: Ids,
        tokens: Ids | None = None,
        softcap: float = 0.0,
        keys: Ids | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Attend to blocks that are all at hand, and fold them at once.

        Parameters
        ----------
        query : float32 [kv_heads * group, k_dim]
            Scaled.
        memory : uint8 [slots, unit_bytes]
            The arena.
        slots : int32 [n]
            Slots of KV head 0 in ascending order of their blocks, then those of head 1, and so on.
        starts : int32 [kv_heads + 1]
            Where each head begins in `slots`.
        tokens : int32 [n], optional
            Valid tokens of each block, 1 to 16; default all.
        softcap : float
            As for `partials`.
        keys : int32 [n], optional
            As for `partials`.

        Returns
        -------
        output, mass
            As from `fold`, in the order of `slots`.
        """
        asks = self._asks(query, memory, slots, keys, tokens, softcap)
        starts = self._starts(starts, len(slots))
        output, mass = self._results(len(slots))
        if not compiled(self.shape)(
            asks, starts, _NONE, _NONE, tuple(Partials.empty(1, self.shape.group, self.shape.v_dim)), (output, mass)
        ):
            raise BadInput("attend: a slot or count of tokens lies outside its range")
        return output, mass[: len(slots)]

    def key_mass(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, starts: Ids, softcap: float = 0.0
    ) -> NDArray[np.float32]:
        """Return what `attend` would return as the mass of full blocks, from their keys alone, float32 [n].

        Parameters
        ----------
        query : float32 [kv_heads * group, k_dim]
            Scaled.
        memory : uint8 [slots, bytes]
            Of which each slot begins with keys.
        slots, starts : int32
            As for `attend`.
        softcap : float
            Of the logits; 0 = none.
        """
        query, memory, slots, *_ = self._asks(query, memory, slots, None, None, softcap, any_size=True)
        starts, mass = self._starts(starts, len(slots)), np.empty(len(slots) + 8, np.float32)
        if not compiled_shares(self.shape)(query, memory, slots, starts, _bits(softcap), mass):
            raise BadInput("key_mass: a slot lies outside its range")
        return mass[: len(slots)]

    def _asks(
        self, query: NDArray[np.float32], memory: NDArray[np.uint8], slots: Ids, keys: Ids | None, tokens: Ids | None,
        softcap: float, *, any_size: bool = False,
    ) -> Asks:  # fmt: skip
        expected, size = (self.kv_heads * self.shape.group, self.shape.k_dim), self.unit_bytes
        if query.shape != expected:
            raise BadInput(f"query has shape {query.shape}, not {expected}")
        if keys is not None:
            size = size // 2 if self.shape.k_dim == self.shape.v_dim and len(keys) == len(slots) else -1
        fits = memory.ndim == 2 and (memory.shape[1] == size or (any_size and memory.shape[1] in (size, size // 2)))
        if not fits or not memory.flags.c_contiguous or memory.dtype != np.uint8:
            raise BadInput(
                f"memory is {memory.dtype} {memory.shape}; the kernel reads contiguous uint8 [slots, {self.unit_bytes}], or half "
                "of that where keys and values, of the same size, have a slot each"
            )
        counts = _NONE if tokens is None else np.ascontiguousarray(tokens, np.int32)
        if tokens is not None and len(counts) != len(slots):
            raise BadInput(f"{len(counts)} counts of tokens for {len(slots)} blocks; give one a block, or None")
        apart = _NONE if keys is None else np.ascontiguousarray(keys, np.int32)
        query, slots = np.ascontiguousarray(query, np.float32), np.ascontiguousarray(slots, np.int32)
        return query, memory, slots, apart, counts, _bits(softcap)

    def _starts(self, starts: Ids, count: int) -> Ids:
        starts = np.ascontiguousarray(starts, np.int32)
        if len(starts) != self.kv_heads + 1 or starts[0] != 0 or starts[-1] != count or (starts[1:] < starts[:-1]).any():
            raise BadInput(f"starts {starts.tolist()} do not cut {count} blocks into {self.kv_heads} KV heads")
        return starts

    def _results(self, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        output = np.empty((self.kv_heads * self.shape.group, self.shape.v_dim), np.float32)
        return output, np.empty(count + 8, np.float32)  # shares are written eight at a time


def _bits(number: float) -> int:
    """The bits of a float32: the vector code takes integers only."""
    return int(np.float32(number).view(np.int32))
