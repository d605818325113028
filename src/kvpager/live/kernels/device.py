"""The contract of `DecodeKernel` on a GPU, in Triton: blocks are read where they lie, in scattered slots of its memory.

Three launches a call. `attend_spans` attends to blocks and folds eight neighbours of a KV head into a span, in ascending
order; `merge_spans` sums the spans of a query head, every 128th in a lane, then the lanes; `block_shares` tells each
block's share. Spans begin at their KV head's first block, and no tile depends on how many blocks there are: no result
depends on what else was computed in the same call. `partials` and `fold` are the first launch in two steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kvpager.errors import BadInput
from kvpager.live.kernels.partials import Partials
from kvpager.live.kernels.shape import AnyShape
from kvpager.live.kernels.spans import ATTEND, FOLD, KEEP, KEYS, attend_spans, block_shares, merge_spans

__all__ = ["DeviceKernel"]

_SPAN: Final = 8
"""Blocks of a span; part of the arithmetic."""
_MEMBERS: Final = 4
"""Query heads of a group that one program computes; more of them find no room in its registers."""
_LANES: Final = 128
"""Spans that are merged at a time."""
_CHANNELS: Final = 32
"""Channels of a value that one program merges."""
_ITEMS: Final = 256
"""Blocks whose shares one program tells."""
_ALIGNMENT: Final = 16
_on: Any = torch.cuda.device_of
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _Read(NamedTuple):
    """What blocks are read by, on the device."""

    query: Tensor
    memory: Tensor
    """By elements."""
    values: Tensor
    """Slots."""
    keys: Tensor
    tokens: Tensor | None
    stride: int
    """From slot to slot, in `DeviceKernel._quantum`."""
    skip: int
    """From the beginning of a slot to its values, likewise."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceKernel(AnyShape):
    """Attention of one query token to blocks in slots of a GPU's memory; compiled once a shape, at first use.

    `memory` is a tensor. Other arrays are NumPy arrays or tensors; those of the host travel in one copy, and only their
    values are checked. Results are NumPy arrays where `query`, or for `fold` `rows`, is one; else tensors on the memory's
    device.

    Parameters
    ----------
    device : str
        Where the memory is; ``"cpu"`` under Triton's interpreter.
    """

    device: str = "cuda"

    def room(self, rows: int) -> Partials:
        """Return room for the partials of so many blocks, with nothing in it yet."""
        return self._room(rows, torch.device(self.device))

    def partials(
        self, query: Any, memory: Any, slots: Any, heads: Any, rows: Any, out: Partials, tokens: Any | None = None,
        softcap: float = 0.0, keys: Any | None = None,
    ) -> None:  # fmt: skip
        """Attend to single blocks, in any order; see `DecodeKernel.partials`. `out` is from `room`."""
        if len(heads) != len(slots) or len(rows) != len(slots):
            raise BadInput(f"partials: {len(slots)} slots, {len(heads)} heads, {len(rows)} rows; give one of each a block")
        self._check_room(out)
        _check_range("a KV head", heads, self.kv_heads)
        _check_range("a row", rows, len(out.m))
        read, (owners, places) = self._read(query, memory, slots, keys, tokens, [_array(heads), _array(rows)])
        if len(slots):
            self._launch((len(slots), 1), KEEP, read, owners, places, owners, out, out, softcap)

    def fold(self, partials: Partials, rows: Any, starts: Any) -> tuple[Any, Any]:
        """Fold partials; see `DecodeKernel.fold`."""
        self._check_room(partials)
        _check_range("a row", rows, len(partials.m))
        edges, acc = self._edges(starts, len(rows)), cast(Tensor, partials.acc)
        places, where = _carried(acc.device, [_array(rows), edges])
        nothing = _Read(acc, acc.view(_DTYPES[self.element]), places, places, None, 0, 0)
        return self._folded(FOLD, nothing, where, _widest(edges, len(rows)), isinstance(rows, Tensor), partials, places)

    def attend(
        self, query: Any, memory: Any, slots: Any, starts: Any, tokens: Any | None = None, softcap: float = 0.0,
        keys: Any | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attend to blocks that are all at hand, and fold them; see `DecodeKernel.attend`."""
        edges = self._edges(starts, len(slots))
        read, (where,) = self._read(query, memory, slots, keys, tokens, [edges])
        return self._folded(ATTEND, read, where, _widest(edges, len(slots)), isinstance(query, Tensor), softcap=softcap)

    def key_mass(self, query: Any, memory: Any, slots: Any, starts: Any, softcap: float = 0.0) -> Any:
        """Return the mass of full blocks from their keys alone; see `DecodeKernel.key_mass`."""
        edges = self._edges(starts, len(slots))
        read, (where,) = self._read(query, memory, slots, None, None, [edges], keys_alone=True)
        return self._folded(KEYS, read, where, _widest(edges, len(slots)), isinstance(query, Tensor), softcap=softcap)[1]

    @cached_property
    def _quantum(self) -> int:
        """Elements of which slots and keys are multiples: a constant of the binary, so that addresses are known as aligned."""
        return self.block_size * math.gcd(self.k_dim, self.v_dim)

    @cached_property
    def _shape(self) -> dict[str, int]:
        """Constants of `attend_spans`: some 64 elements of keys, and of values, a thread, so that they stay in registers."""
        own = {"group": self.group, "k_dim": self.k_dim, "v_dim": self.v_dim, "size": self.block_size}
        sides = {"members": min(self.group, _MEMBERS), "k_tile": self.k_dim, "v_tile": self.v_dim, "places": self.block_size}
        padded = {name: 1 << (count - 1).bit_length() for name, count in sides.items()}
        warps = min(8, max(1, max(padded["k_tile"], padded["v_tile"]) * padded["places"] // 2048))
        tiles = -(-self.group // padded["members"])
        return own | padded | {"quantum": self._quantum, "span": _SPAN, "tiles": tiles, "num_warps": warps, "num_stages": 1}

    def _room(self, rows: int, device: torch.device) -> Partials:
        small: Any = (rows, self.group)
        parts: list[Any] = [torch.empty(shape, device=device) for shape in (small, small, (*small, self.v_dim))]
        return Partials(*parts)

    def _launch(
        self, grid: tuple[int, int], mode: Any, read: _Read, heads: Tensor, rows: Tensor, starts: Tensor,
        blocks: Partials, spans: Partials, softcap: float,
    ) -> None:  # fmt: skip
        counts = read.values if read.tokens is None else read.tokens
        with _on(read.memory):
            attend_spans[grid[0] * self._shape["tiles"], grid[1]](
                read.query, read.memory, read.keys, read.values, counts, heads, rows, starts, *blocks, *spans, mode.value,
                read.stride, read.skip, int(read.tokens is not None), float(softcap), **self._shape,
            )  # fmt: skip

    def _folded(
        self, mode: Any, read: _Read, starts: Tensor, widest: int, stays: bool, blocks: Partials | None = None,
        rows: Tensor | None = None, softcap: float = 0.0,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Fold blocks, of which a KV head has up to `widest`; the result stays on the device, or goes to the host."""
        count, lanes, device = len(read.values), self.kv_heads * self.group, read.memory.device
        spans = self._room(count // _SPAN + self.kv_heads, device)
        if blocks is None:
            high, part = (cast(Any, torch.empty(count, self.group, device=device)) for _ in range(2))
            blocks = Partials(high, part, spans.acc)  # sums of single blocks are not kept
        places = starts if rows is None else rows
        size = lanes * self.v_dim
        result = torch.empty(size + count, device=device)
        tops, totals = torch.empty(2, lanes, device=device)
        with _on(result):
            if count:
                grid = (-(-widest // _SPAN), self.kv_heads)
                self._launch(grid, mode, read, places, places, starts, blocks, spans, softcap)
            merge_spans[lanes, -(-self.v_dim // _CHANNELS)](
                starts, *spans, result, tops, totals, group=self.group, v_dim=self.v_dim, span=_SPAN, lanes=_LANES,
                channels=_CHANNELS,
            )  # fmt: skip
            if count:
                block_shares[-(-widest // _ITEMS), self.kv_heads](
                    places, starts, blocks.m, blocks.l, tops, totals, result[size:], int(rows is not None), group=self.group,
                    items=_ITEMS,
                )  # fmt: skip
        whole: Any = result if stays else result.cpu().numpy()
        return whole[:size].reshape(lanes, self.v_dim), whole[size:]

    def _read(
        self, query: Any, memory: Any, slots: Any, keys: Any | None, tokens: Any | None, others: list[Any], *,
        keys_alone: bool = False,
    ) -> tuple[_Read, list[Tensor]]:  # fmt: skip
        """Check what is read, and bring it and `others` to the device."""
        expected = (self.kv_heads * self.group, self.k_dim)
        if tuple(query.shape) != expected:
            raise BadInput(f"device kernel: query has shape {tuple(query.shape)}, not {expected}")
        if tokens is not None and len(tokens) != len(slots):
            raise BadInput(f"device kernel: {len(tokens)} counts of tokens for {len(slots)} blocks; give one a block, or None")
        width = self._width(memory, len(slots), keys, keys_alone)
        for chosen in (slots, keys):
            _check_range("a slot", chosen, len(memory))
        _check_range("a count of tokens", tokens, self.block_size + 1, 1)
        values = _array(slots)
        apart = values if keys is None else _array(keys)
        counts = values if tokens is None else _array(tokens)
        asked, *moved = _carried(memory.device, [_array(query, np.float32), values, apart, counts, *others])
        together = width > self.block_size * self.k_dim
        stride, skip = width // self._quantum, self.block_size * self.k_dim // self._quantum if together else 0
        units = memory.view(_DTYPES[self.element])
        asked = asked.view(torch.float32)
        read = _Read(asked, units, moved[0], moved[1], None if tokens is None else moved[2], stride, skip)
        return read, moved[3:]

    def _width(self, memory: Any, count: int, keys: Any | None, keys_alone: bool) -> int:
        """Elements of a slot."""
        bits = _DTYPES[self.element].itemsize
        half, whole = self.block_size * self.k_dim, self.block_size * (self.k_dim + self.v_dim)
        if keys is None:
            sizes = [whole, half] if keys_alone else [whole]
        else:
            sizes = [half] if self.k_dim == self.v_dim and len(keys) == count else []
        good = isinstance(memory, Tensor) and memory.dtype == torch.uint8 and memory.ndim == 2 and memory.is_contiguous()
        good = good and memory.device.type == torch.device(self.device).type and memory.data_ptr() % _ALIGNMENT == 0
        if not good or memory.shape[1] not in [size * bits for size in sizes]:
            what = f"{memory.dtype} {tuple(memory.shape)} on {getattr(memory, 'device', 'the host')}"
            raise BadInput(
                f"device kernel: memory is {what}; it reads a contiguous uint8 tensor [slots, {whole * bits}] on {self.device}, "
                f"aligned to {_ALIGNMENT} bytes, or slots of half that size where keys and values, of one size, have one each"
            )
        return int(memory.shape[1]) // bits

    def _check_room(self, room: Partials) -> None:
        small = (len(room.m), self.group)
        part: Any
        for part, shape in zip(room, (small, small, (*small, self.v_dim)), strict=True):
            good = isinstance(part, Tensor) and part.dtype == torch.float32 and part.shape == shape and part.is_contiguous()
            if not good or part.device.type != torch.device(self.device).type or part.data_ptr() % _ALIGNMENT:
                raise BadInput(f"device kernel: partials of {type(part).__name__} {tuple(part.shape)}, not {shape}: use room")

    def _edges(self, starts: Any, count: int) -> Any:
        edges = _array(starts)
        cut = len(edges) == self.kv_heads + 1
        if cut and isinstance(edges, np.ndarray):
            cut = edges[0] == 0 and edges[-1] == count and not (edges[1:] < edges[:-1]).any()
        if not cut:
            raise BadInput(f"device kernel: starts {edges.tolist()} do not cut {count} blocks into {self.kv_heads} KV heads")
        return edges


def _array(values: Any, kind: type[np.generic] = np.int32) -> Any:
    """Contiguous int32 or float32: a tensor on a device as one, anything else as an array."""
    if isinstance(values, Tensor):
        values = values.to(torch.float32 if kind is np.float32 else torch.int32).contiguous()
        return values.numpy() if values.device.type == "cpu" else values
    return np.ascontiguousarray(values, kind)


def _check_range(what: str, values: Any | None, stop: int, first: int = 0) -> None:
    """Refuse values on the host that lie outside a range; looking at those on a device would mean to wait for it."""
    if values is None or len(values) == 0 or (isinstance(values, Tensor) and values.device.type != "cpu"):
        return
    low, high = int(values.min()), int(values.max())
    if low < first or high >= stop:
        wrong = low if low < first else high
        raise BadInput(f"device kernel: {what}, {wrong}, lies outside {first} to {stop - 1}; give one of those")


def _carried(device: torch.device, arrays: list[Any]) -> list[Tensor]:
    """Bring arrays to `device`: those of the host in one copy, each once, as int32 whatever their bits mean."""
    host = list({id(array): array for array in arrays if isinstance(array, np.ndarray)}.values())
    staged = torch.empty(sum(array.size for array in host), dtype=torch.int32, pin_memory=device.type == "cuda")
    if host:
        np.concatenate([array.view(np.int32).ravel() for array in host], out=staged.numpy())
    moved = torch.split(staged.to(device, non_blocking=True), [array.size for array in host])
    places = {id(array): part for array, part in zip(host, moved, strict=True)}
    return [places[id(array)] if isinstance(array, np.ndarray) else array.to(device) for array in arrays]


def _widest(starts: Any, count: int) -> int:
    """Most blocks of a KV head, as far as the host knows."""
    return int(np.diff(starts).max()) if isinstance(starts, np.ndarray) else count
