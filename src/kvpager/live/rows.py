"""The rows of a live cache: which blocks each one holds, and what forking, cropping and reordering do to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, UnitTable
from kvpager.errors import InvariantError

__all__ = ["Row", "places"]


@dataclass
class Row:
    """One sequence of a batch. Positions count from its first real token: padding in front of it is not kept.

    Attributes
    ----------
    sequence : int
        Its number in the unit table.
    tokens : int
        Real tokens of all complete forward calls.
    sealed : int
        Blocks from the start that are sealed: complete and confirmed by a later call.
    bases : int32 [blocks]
        First unit id of each block, ascending.
    previous : dict of int to bool [kv_heads, blocks]
        What the selector chose one step ago, by layer.
    """

    sequence: int
    tokens: int = 0
    sealed: int = 0
    bases: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    previous: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def refresh(self, table: UnitTable) -> None:
        """Read the blocks from the table anew; raise `InvariantError` if they do not ascend: all that reads them needs that."""
        self.bases = np.array(table.blocks(self.sequence), np.int32)
        if (self.bases[1:] <= self.bases[:-1]).any():
            raise InvariantError(f"blocks of sequence {self.sequence} do not ascend: {self.bases.tolist()}")

    def units(self, table: UnitTable, layer: int, blocks: slice = slice(None)) -> Ids:
        """Units of a layer's blocks, ascending."""
        return table.at_layer(self.bases[blocks], layer)


def places(table: UnitTable, bases: Ids, units: Ids) -> tuple[NDArray[np.intp], Ids]:
    """Return where `units` stand: the position of each one's block among `bases`, which ascend, and its KV head."""
    return np.searchsorted(bases, units, side="right") - 1, table.kv_head[units]
