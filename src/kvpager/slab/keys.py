"""Under which key a table's blocks are in the store, and who owns them there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import InvariantError

__all__ = ["BlockKeys", "whole_records"]

U64 = NDArray[np.uint64]


class BlockKeys:
    """Keys by block number of one table; arrays only grow.

    Parameters
    ----------
    units_per_block, heads_per_layer : int
        Of the table.
    """

    def __init__(self, units_per_block: int, heads_per_layer: int) -> None:
        self._units, self._heads = units_per_block, heads_per_layer
        self._keys = np.zeros(0, np.uint64)
        self._left = np.zeros(0, np.int32)
        self._borrowed = np.zeros(0, np.bool_)

    def split(self, units: Ids) -> tuple[Ids, Ids, Ids]:
        """Return block number, layer and KV head of each unit."""
        blocks, rest = np.divmod(units, np.int32(self._units))
        layers, heads = np.divmod(rest, np.int32(self._heads))
        return blocks, layers, heads

    def of(self, blocks: Ids) -> U64:
        """Return the keys of `blocks`, uint64; 0 = none."""
        self._reach(blocks)
        return self._keys[blocks]

    def without(self, blocks: Ids) -> Ids:
        """Those of `blocks` that have no key, each once."""
        self._reach(blocks)
        return np.unique(blocks[self._keys[blocks] == 0])

    def set(self, blocks: Ids, keys: U64, *, borrowed: bool) -> None:
        """Give `blocks` their keys; `borrowed`: the records outlive the table's units."""
        self._reach(blocks)
        self._keys[blocks], self._left[blocks], self._borrowed[blocks] = keys, self._units, borrowed

    def forget(self, units: Ids) -> U64:
        """Count `units` as gone; return the keys of blocks that went with their last unit and are not borrowed."""
        blocks, counts = np.unique(units // self._units, return_counts=True)
        self._reach(blocks)
        self._left[blocks] -= counts.astype(np.int32)
        gone = blocks[(self._left[blocks] <= 0) & (self._keys[blocks] != 0)]
        keys: U64 = self._keys[gone[~self._borrowed[gone]]]
        self._keys[gone] = 0
        return keys

    def disown(self, keys: U64) -> U64:
        """Borrow `keys` no longer: the records of blocks that are here go with them; return the keys of the rest."""
        here = np.isin(self._keys, keys)
        self._borrowed[here] = False
        gone: U64 = keys[~np.isin(keys, self._keys[here])]
        return gone

    def _reach(self, blocks: Ids) -> None:
        """Make room for the highest of `blocks`."""
        more = int(blocks.max(initial=-1)) + 1 - len(self._keys)
        if more > 0:
            more = max(more, len(self._keys))
            self._keys = np.concatenate([self._keys, np.zeros(more, np.uint64)])
            self._left = np.concatenate([self._left, np.full(more, self._units, np.int32)])
            self._borrowed = np.concatenate([self._borrowed, np.zeros(more, np.bool_)])


def whole_records(units: Ids, heads: int) -> Ids:
    """Return ascending `units` record by record, [records, heads]; raise `InvariantError` unless they are whole records."""
    records: Ids = units[: len(units) // heads * heads].reshape(-1, heads)
    if records.size != len(units) or (records != records[:, :1] // heads * heads + np.arange(heads)).any():
        raise InvariantError(f"{len(units)} units are not whole records: name all {heads} units of a block and layer")
    return records
