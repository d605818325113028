"""Which records the store holds, in memory: [block, layer] arrays, and a dictionary from key to row."""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.slab.record import U64, mixed, seeds_of

__all__ = ["Records", "Table"]

Places = NDArray[np.int64]


class Records(NamedTuple):
    """Some records, one entry each; `checksums` [records, parts], `tag` [records, tag_bytes]."""

    key: U64
    layer: NDArray[np.int32]
    place: Places
    generation: U64
    checksums: U64
    tag: NDArray[np.uint8]

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Records:
        """The chosen ones."""
        key, layer, place, generation, checksums, tag = self
        return Records(key[chosen], layer[chosen], place[chosen], generation[chosen], checksums[chosen], tag[chosen])

    def digest(self) -> int:
        """One number for what they say, whatever their order."""
        with np.errstate(over="ignore"):
            row = mixed(mixed(mixed(self.key) + self.layer.astype(np.uint64)) + self.generation) + self.place.astype(np.uint64)
            for column in (*self.checksums.T, *np.ascontiguousarray(self.tag).view(np.uint64).T):
                row = mixed(row) + column
            return int(mixed(row).sum(dtype=np.uint64)) if len(row) else 0


class Table:
    """The records that are acknowledged and not forgotten.

    Parameters
    ----------
    layers, parts, tag_bytes : int
        Of a block, and of a record.
    """

    def __init__(self, layers: int, parts: int, tag_bytes: int = 0) -> None:
        self.layers, self.parts, self._tag_bytes = layers, parts, tag_bytes
        self.records = 0
        self._rows: dict[int, int] = {}
        self._spare: list[int] = []
        self._key = np.zeros(0, np.uint64)
        self._place = np.zeros((0, layers), np.int64)
        self._generation = np.zeros((0, layers), np.uint64)
        self._seed = np.zeros((0, layers), np.uint64)
        self._checksums = np.zeros((0, layers, parts), np.uint64)
        self._tag = np.zeros((0, layers, tag_bytes), np.uint8)

    def find(self, keys: U64, layers: NDArray[np.int32]) -> Places:
        """Return the place of each record (key, layer); -1: none."""
        rows = np.fromiter(map(self._rows.get, keys.tolist(), repeat(-1)), np.int64, len(keys))
        return np.where(rows >= 0, self._place[rows, layers], -1) if len(self._key) else rows

    def find_units(self, keys: U64, layers: NDArray[np.int32], parts: Ids) -> tuple[Places, U64, U64]:
        """Return the place of each unit's record (-1: none), and the seed and the value of the unit's checksum."""
        rows = np.fromiter(map(self._rows.get, keys.tolist(), repeat(-1)), np.int64, len(keys))
        if not len(self._key):
            return rows, np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
        at = rows * self.layers + layers
        places = self._place.ravel()[at]
        places[rows < 0] = -1
        return places, self._seed.ravel()[at] + parts.astype(np.uint64), self._checksums.ravel()[at * self.parts + parts]

    def put(self, records: Records) -> Places:
        """Take records in; return the places of those that they replace.

        Of two for the same (key, layer) the higher generation stays; the place of the other one is returned.
        """
        lost: list[int] = []
        seeds = seeds_of(records.key, records.layer, records.generation)
        for number, (key, layer) in enumerate(zip(records.key.tolist(), records.layer.tolist(), strict=True)):
            row = self._rows.get(key)
            if row is None:
                row = self._new_row(key)
            old, place = int(self._place[row, layer]), int(records.place[number])
            if old == place:
                pass
            elif old >= 0 and self._generation[row, layer] >= records.generation[number]:
                lost.append(place)
                continue
            elif old >= 0:
                lost.append(old)
            else:
                self.records += 1
            self._place[row, layer] = place
            self._generation[row, layer] = records.generation[number]
            self._seed[row, layer] = seeds[number]
            self._checksums[row, layer] = records.checksums[number]
            self._tag[row, layer] = records.tag[number]
        return np.array(lost, np.int64)

    def drop(self, keys: list[int]) -> Places:
        """Forget `keys`; return the places of their records."""
        rows = [row for key in keys if (row := self._rows.pop(key, None)) is not None]
        places = self._place[rows].ravel()
        self._place[rows] = -1
        self._spare += rows
        places = places[places >= 0]
        self.records -= len(places)
        return places

    def keys(self) -> U64:
        """All keys, in no order."""
        return np.fromiter(self._rows, np.uint64, len(self._rows))

    def count(self, keys: U64) -> int:
        """Records of the blocks `keys`."""
        rows = [row for key in set(keys.tolist()) if (row := self._rows.get(key)) is not None]
        return int(np.count_nonzero(self._place[rows] >= 0))

    def all(self) -> Records:
        """All records, in order of place."""
        row, layer = np.nonzero(self._place >= 0)
        place = self._place[row, layer]
        order = np.argsort(place)
        row, layer, place = row[order], layer[order], place[order]
        return Records(
            self._key[row], layer.astype(np.int32), place, self._generation[row, layer], self._checksums[row, layer],
            self._tag[row, layer],
        )  # fmt: skip

    def _new_row(self, key: int) -> int:
        if not self._spare:
            used = len(self._key)
            room = max(16, used)
            self._key = np.concatenate([self._key, np.zeros(room, np.uint64)])
            self._place = np.concatenate([self._place, np.full((room, self.layers), -1)])
            self._generation = np.concatenate([self._generation, np.zeros((room, self.layers), np.uint64)])
            self._seed = np.concatenate([self._seed, np.zeros((room, self.layers), np.uint64)])
            self._checksums = np.concatenate([self._checksums, np.zeros((room, self.layers, self.parts), np.uint64)])
            self._tag = np.concatenate([self._tag, np.zeros((room, self.layers, self._tag_bytes), np.uint8)])
            self._spare = list(range(used + room - 1, used - 1, -1))
        row = self._spare.pop()
        self._rows[key], self._key[row] = row, key
        return row
