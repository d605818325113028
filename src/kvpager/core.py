"""The nouns on the arrows between the parts. No behaviour beyond bookkeeping of identity.

Arrays on the hot path, never one object per unit. Axes are always ordered ``[layer, kv_head, block]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import InvariantError

__all__ = [
    "ALL_LAYERS",
    "DRAM",
    "FIRST_TOUCH",
    "HBM",
    "NVME",
    "PINNED",
    "RECOMPUTE",
    "STAGE",
    "TIER_NAMES",
    "Budget",
    "Demand",
    "Done",
    "Grant",
    "Ids",
    "KVGeometry",
    "LayerKV",
    "Move",
    "Seen",
    "Tick",
    "UnitTable",
]

Ids = NDArray[np.int32]

PINNED, HBM, DRAM, NVME = 0, 1, 2, 3
RECOMPUTE, FIRST_TOUCH = 4, 5
STAGE = -1
TIER_NAMES = {PINNED: "hbm_pinned", HBM: "hbm", DRAM: "dram", NVME: "nvme", RECOMPUTE: "recompute", FIRST_TOUCH: "first_touch"}

ALL_LAYERS = -1
"""Layer number of a tick that covers every layer at once (the step clock)."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """What one layer keeps of a sequence.

    Parameters
    ----------
    num_kv_heads : int
        KV heads; 0 for a layer without attention.
    k_dim, v_dim : int
        Elements of a key and of a value. A latent vector counts as key, with no value beside it.
    window_tokens : int, optional
        Sliding window or attention chunk, after which K and V stop growing; None for full attention.
    latent : bool
        One vector for all heads (MLA): every tensor-parallel rank holds all of it.
    index_dim : int
        Elements of an indexer's key, one for each entry, never windowed (DSA and its kin).
    compressed_dim : int
        Elements of a compressed entry kept beside the window, never windowed (DeepSeek V4).
    entry_tokens : int
        Tokens behind one index key or compressed entry.
    state_bytes : int
        Constant bytes of a sequence, whatever its length: linear attention or Mamba.
    state_heads : int
        Into how many equal parts tensor parallelism can cut the state.
    shares_layer : int, optional
        The earlier layer whose KV this one reads instead of keeping its own.
    """

    num_kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int | None = None
    latent: bool = False
    index_dim: int = 0
    compressed_dim: int = 0
    entry_tokens: int = 1
    state_bytes: int = 0
    state_heads: int = 1
    shares_layer: int | None = None

    @property
    def elements_per_token(self) -> int:
        """Elements of K and V that a token adds while it is inside the window; 0 if another layer keeps them."""
        return 0 if self.shares_layer is not None else self.num_kv_heads * (self.k_dim + self.v_dim)

    @property
    def entry_elements(self) -> int:
        """Elements that every `entry_tokens` tokens add, window or not."""
        return self.compressed_dim + self.index_dim


@dataclass(frozen=True, slots=True)
class KVGeometry:
    """What a model's KV cache costs, layer by layer.

    Parameters
    ----------
    name : str
        Model name, as given.
    family : str
        Registered model family, e.g. ``"llama"``.
    num_q_heads : int
        Query heads of a layer.
    dtype_bytes : int
        Bytes of a KV element.
    layers : tuple of LayerKV
        One entry a layer, in order.
    max_context_tokens : int, optional
        The model's own limit.
    """

    name: str
    family: str
    num_q_heads: int
    dtype_bytes: int
    layers: tuple[LayerKV, ...]
    max_context_tokens: int | None = None

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention and KV of their own: those that tiering is about."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.elements_per_token and layer.window_tokens is None)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one more token adds, on average, while every window still has room."""
        return self.dtype_bytes * sum(
            layer.elements_per_token + layer.entry_elements // layer.entry_tokens for layer in self.layers
        )

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence costs at any length: states of linear attention and Mamba layers."""
        return sum(layer.state_bytes for layer in self.layers)

    def kv_bytes(self, context_tokens: int) -> int:
        """Exact architectural bytes of one sequence after `context_tokens` tokens: windows stop growing."""
        return self.state_bytes + self.dtype_bytes * sum(
            layer.elements_per_token * min(context_tokens, layer.window_tokens or context_tokens)
            + layer.entry_elements * (context_tokens // layer.entry_tokens)
            for layer in self.layers
        )


class Tick(NamedTuple):
    """The only time the Pager knows; ordered. Steps below 0 are the prefill."""

    step: int
    layer: int


class Demand(NamedTuple):
    """What one layer's selector asks for: one batch, judged at once."""

    tick: Tick
    units: Ids
    """Unique, ascending."""
    asks: Ids
    """How many (row, KV head) pairs stand behind each unit."""


class Seen(NamedTuple):
    """Attention mass of the units that were *read* in this tick, rounded to float16."""

    tick: Tick
    units: Ids
    mass: NDArray[np.float16]


class Move(NamedTuple):
    """Units that change place together. ``dst`` `STAGE` = read for this tick, not kept."""

    id: int
    units: Ids
    src: int
    dst: int
    why: str
    """demand, prefetch, keep, demote, drop or backup."""


class Done(NamedTuple):
    """A tier's answer to one move."""

    move: int
    ok: NDArray[np.bool_]
    payload_bytes: int


class Grant(NamedTuple):
    """The Pager's answer to a `Demand`."""

    tier: NDArray[np.int8]
    """Where each asked unit stood before any fetch: 0 1 2 3, `RECOMPUTE` or `FIRST_TOUCH` (law 1)."""
    late: Ids
    """Asked while a prefetch was in flight: a miss of its source tier; joined, not read twice."""
    rounds: tuple[tuple[Move, ...], ...]
    """Round 0 = resident units (no move); each later round fits the staging slots."""
    early: NDArray[np.bool_]
    """Hits owed to a prefetch since the unit's last use, hence not demand-only, bool [asked units]."""


class Budget(NamedTuple):
    """Capacities in bytes. Payload counts resident, pinned, open and in-flight units (law 6)."""

    payload_bytes: tuple[int, int, int, int]
    """By tier. Tiers 0 and 1 share one memory: their sum is what HBM holds."""
    metadata_bytes: int
    staging_bytes: int
    prefetch_bytes_per_tick: float = 0.0


class UnitTable:
    """Identity and life of units: which block of which sequence, layer and head an id stands for.

    A new block gets one contiguous run of ids, ordered ``[layer, kv_head]``. A block shared by forks
    is one set of units with a reference count. Ids are never reused.

    Parameters
    ----------
    num_layers, num_kv_heads, block_size : int
        Shape; `block_size` in tokens.
    head_block_bytes : int
        Payload of one KV head's block in one layer (K and V).
    granularity : {"head", "layer"}
        What has residency of its own.

    Attributes
    ----------
    layer, kv_head, first_token : int32 [units]
        What an id stands for; `kv_head` is -1 for granularity ``"layer"``.
    refs : int32 [units]
        How many sequences hold the unit; 0 = freed.
    sealed : bool [units]
        Full and confirmed, hence immutable.
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, block_size: int, head_block_bytes: int, granularity: str = "head"
    ) -> None:
        self.num_layers, self.num_kv_heads = num_layers, num_kv_heads
        self.block_size, self.granularity = block_size, granularity
        self.heads_per_layer = num_kv_heads if granularity == "head" else 1
        self.units_per_block = num_layers * self.heads_per_layer
        self.unit_bytes = head_block_bytes * (num_kv_heads // self.heads_per_layer)
        self.size = 0
        self._room = 0
        self.layer = self.kv_head = self.first_token = self.refs = np.empty(0, np.int32)
        self.sealed = np.empty(0, np.bool_)
        self._sequences: dict[int, list[int]] = {}
        self._next_sequence = 0
        self._of_layer: dict[int, Ids] = {}

    def new_sequence(self) -> int:
        """Start an empty sequence and return its number."""
        self._sequences[self._next_sequence] = []
        self._next_sequence += 1
        return self._next_sequence - 1

    def reserve(self, units: int) -> None:
        """Make room for `units` ids in all; arrays only grow."""
        if units <= self._room:
            return
        for name in ("layer", "kv_head", "first_token", "refs", "sealed"):
            old = getattr(self, name)
            new = np.zeros(units, old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
        self._room = units

    def open(self, seq: int, block: int) -> Ids:
        """Open block number `block` of `seq`, which must be its next, and return its units' ids."""
        blocks = self._alive(seq)
        if block != len(blocks):
            raise InvariantError(f"block {block} of sequence {seq} is not its next one, {len(blocks)}: open blocks in order")
        base = self._create(block)
        blocks.append(base)
        return self._run(base)

    def open_many(self, seq: int, count: int) -> Ids:
        """Open the next `count` blocks of `seq` and return their ids, ascending."""
        first = len(self._alive(seq))
        self.reserve(self.size + count * self.units_per_block)
        return np.concatenate([self.open(seq, first + i) for i in range(count)]) if count else np.empty(0, np.int32)

    def blocks(self, seq: int) -> list[int]:
        """First unit id of each block of `seq`; the block's units follow it in ``[layer, kv_head]`` order."""
        return list(self._alive(seq))

    def seal(self, units: Ids) -> None:
        """Declare `units` full and confirmed: immutable from here."""
        self.sealed[units] = True

    def fork(self, seq: int) -> int:
        """Return a new sequence that shares the sealed blocks of `seq` and owns a copy of its open one."""
        blocks = self._alive(seq)
        twin = self.new_sequence()
        for block, base in enumerate(blocks):
            if self.sealed[base]:
                self.refs[base : base + self.units_per_block] += 1
                self._sequences[twin].append(base)
            else:
                self._sequences[twin].append(self._create(block))
        return twin

    def truncate(self, seq: int, tokens: int) -> Ids:
        """Crop `seq` to `tokens` tokens; a cut sealed block reopens under new ids.

        Returns
        -------
        Ids
            Units whose last reference went.
        """
        blocks = self._alive(seq)
        if tokens < 0:
            raise InvariantError(f"sequence {seq} cannot be cropped to {tokens} tokens: crop to 0 or more")
        whole, rest = divmod(tokens, self.block_size)
        gone = blocks[whole:]
        del blocks[whole:]
        if rest and gone:
            blocks.append(gone.pop(0) if not self.sealed[gone[0]] else self._create(whole))
        return self._drop(gone)

    def free(self, seq: int) -> Ids:
        """End `seq`; return the units whose last reference went."""
        blocks = self._alive(seq)
        del self._sequences[seq]
        return self._drop(blocks)

    def of_layer(self, layer: int) -> Ids:
        """All ids ever created in `layer` (`ALL_LAYERS`: all ids), ascending."""
        known = self._of_layer.get(layer)
        blocks = self.size // self.units_per_block
        width = self.units_per_block if layer == ALL_LAYERS else self.heads_per_layer
        if known is None or len(known) != blocks * width:
            start = 0 if layer == ALL_LAYERS else layer * self.heads_per_layer
            known = (np.arange(blocks)[:, None] * self.units_per_block + start + np.arange(width)).ravel().astype(np.int32)
            self._of_layer[layer] = known
        return known

    def at_layer(self, bases: Ids, layer: int) -> Ids:
        """Ids of one layer's units of the blocks that begin at `bases`: block by block, head by head."""
        heads = np.arange(layer * self.heads_per_layer, (layer + 1) * self.heads_per_layer, dtype=np.int32)
        units: Ids = (bases[:, None] + heads).ravel()
        return units

    def whole(self, bases: Ids) -> Ids:
        """Ids of all units of the blocks that begin at `bases`, block by block."""
        inside = np.arange(self.units_per_block, dtype=np.int32)
        units: Ids = (bases[:, None] + inside).ravel()
        return units

    def layer_view(self, values: NDArray[Any], layer: int) -> NDArray[Any]:
        """View of one layer's entries of an array over units, ``[blocks, heads]``; `ALL_LAYERS`: of all entries.

        Writing to the view writes to `values`: a whole layer is updated without an index array.
        """
        blocks = values[: self.size].reshape(-1, self.num_layers, self.heads_per_layer)
        return blocks.reshape(len(blocks), -1) if layer == ALL_LAYERS else blocks[:, layer]

    def _alive(self, seq: int) -> list[int]:
        if seq not in self._sequences:
            raise InvariantError(
                f"sequence {seq} is not alive in this table: it was freed, or never begun by new_sequence or fork"
            )
        return self._sequences[seq]

    def _run(self, base: int) -> Ids:
        return np.arange(base, base + self.units_per_block, dtype=np.int32)

    def _create(self, block: int) -> int:
        base, count = self.size, self.units_per_block
        if base + count > self._room:
            self.reserve(max(2 * self._room, base + count))
        self.size += count
        new = slice(base, self.size)
        layers, heads = np.divmod(np.arange(count), self.heads_per_layer)
        self.layer[new] = layers
        self.kv_head[new] = heads if self.granularity == "head" else -1
        self.first_token[new] = block * self.block_size
        self.refs[new] = 1
        return base

    def _drop(self, bases: list[int]) -> Ids:
        freed = []
        for base in bases:
            run = self._run(base)
            self.refs[run] -= 1
            if self.refs[base] == 0:
                freed.append(run)
        return np.concatenate(freed) if freed else np.empty(0, np.int32)
