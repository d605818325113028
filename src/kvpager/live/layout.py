"""How a unit's bytes lie: the same in HBM's arena, in tier 2 and on disk."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kvpager.core import KVGeometry
from kvpager.errors import ModelError

__all__ = ["ELEMENTS", "Layout"]

ELEMENTS: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Element types that can be stored."""


class Layout(NamedTuple):
    """Shape of the units of a model's full-attention layers.

    A unit is one KV head's block of one layer: K as ``[k_dim, block_size]``, then V as ``[block_size, v_dim]``. In a
    split layout, K stays in fast memory and a unit is V alone; both take a slot of the same size.
    """

    layers: int
    """Full-attention layers, in order; other layers are not tiered."""
    kv_heads: int
    group: int
    """Query heads a KV head."""
    k_dim: int
    v_dim: int
    block_size: int
    element: str
    """``"float32"`` or ``"bfloat16"``."""
    split: bool = False
    """Whether keys stay in fast memory."""

    @classmethod
    def of(cls, geometry: KVGeometry, *, block_size: int = 16, element: str = "float32", split: bool = False) -> Layout:
        """Return the layout of a model.

        Raises
        ------
        ModelError
            If its full-attention layers differ in shape, share KV, or keep no plain K and V; for an element type that
            cannot be stored; or if K and V of a split layout differ in size.
        """
        if element not in ELEMENTS:
            raise ModelError(f"model {geometry.name!r} keeps its KV as {element}: load it as {' or '.join(ELEMENTS)}")
        shapes = {geometry.layers[layer] for layer in geometry.full_layers}
        if not shapes:
            raise ModelError(f"model {geometry.name!r} has no full-attention layer: there is no growing cache to tier")
        shape = shapes.pop()
        if shapes or shape.latent or shape.index_dim or shape.shares_layer is not None:
            raise ModelError(
                f"model {geometry.name!r}: its full-attention layers share KV, differ in shape, or keep no plain K and V: "
                "the live cache knows one shape of K and V; choose another model"
            )
        if split and shape.k_dim != shape.v_dim:
            raise ModelError(f"model {geometry.name!r} has keys and values of different size: its keys cannot be kept apart")
        group = geometry.num_q_heads // shape.num_kv_heads
        return cls(len(geometry.full_layers), shape.num_kv_heads, group, shape.k_dim, shape.v_dim, block_size, element, split)

    @property
    def kv_bytes(self) -> int:
        """K and V of one KV head's block."""
        return self.block_size * (self.k_dim + self.v_dim) * ELEMENTS[self.element].itemsize

    @property
    def unit_bytes(self) -> int:
        """Payload of a unit, and size of a slot."""
        return self.kv_bytes // 2 if self.split else self.kv_bytes

    @property
    def parts(self) -> int:
        """Parts of a record on disk: a KV head's unit each; split, all heads' keys, then all heads' values."""
        return self.kv_heads * (2 if self.split else 1)

    @property
    def whole(self) -> Layout:
        """The layout with K and V together."""
        return self._replace(split=False)

    @property
    def block_bytes(self) -> int:
        """Payload of one block of all tiered layers."""
        return self.unit_bytes * self.layers * self.kv_heads

    def keys(self, memory: Tensor) -> Tensor:
        """View of an arena's keys, ``[slots, k_dim, block_size]``."""
        whole = memory.view(ELEMENTS[self.element])
        return whole[:, : self.k_dim * self.block_size].view(len(memory), self.k_dim, self.block_size)  # split: all of it

    def values(self, memory: Tensor) -> Tensor:
        """View of an arena's values, ``[slots, block_size, v_dim]``."""
        first = 0 if self.split else self.k_dim * self.block_size
        return memory.view(ELEMENTS[self.element])[:, first:].view(len(memory), self.block_size, self.v_dim)
