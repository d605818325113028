"""What the kernels have in common that take any shape, and are slower for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvpager.errors import BadInput
from kvpager.live.kernels.partials import Partials

__all__ = ["AnyShape"]

_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, eq=False)
class AnyShape:
    """Base of kernels that fulfil the contract of `DecodeKernel` for any shape.

    Parameters
    ----------
    kv_heads : int
        KV heads of the layer.
    group : int
        Query heads a KV head.
    k_dim, v_dim : int
        Elements of a key and of a value.
    block_size : int
        Tokens of a block.
    element : str
        ``"float32"`` or ``"bfloat16"``.

    Raises
    ------
    BadInput
        A size below 1, or another element.
    """

    kv_heads: int
    group: int
    k_dim: int
    v_dim: int
    block_size: int
    element: str

    def __post_init__(self) -> None:
        sizes = (self.kv_heads, self.group, self.k_dim, self.v_dim, self.block_size)
        if self.element not in _ELEMENT_BYTES or min(sizes) < 1:
            raise BadInput(f"{self} has a size below 1, or elements other than {' and '.join(_ELEMENT_BYTES)}: give others")

    def room(self, rows: int) -> Partials:
        """Return room for the partials of so many blocks, with nothing in it yet."""
        return Partials.empty(rows, self.group, self.v_dim)

    def attend(
        self, query: Any, memory: Any, slots: Any, starts: Any, tokens: Any | None = None, softcap: float = 0.0,
        keys: Any | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Attend to blocks that are all at hand, and fold them; see `DecodeKernel.attend`."""
        raise NotImplementedError

    def key_mass(self, query: Any, memory: Any, slots: Any, starts: Any, softcap: float = 0.0) -> Any:
        """Return the mass of full blocks from their keys alone; see `DecodeKernel.key_mass`."""
        apart = memory.shape[1] == self.block_size * self.k_dim * _ELEMENT_BYTES[self.element]
        return self.attend(query, memory, slots, starts, None, softcap, slots if apart else None)[1]
