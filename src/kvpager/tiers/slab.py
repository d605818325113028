"""The backing store as a tier: units of a table become records of a store, and come back checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvpager.core import NVME, Done, Ids, Move, UnitTable
from kvpager.errors import InvariantError
from kvpager.slab.keys import BlockKeys, whole_records
from kvpager.tiers.arena import Arena, Passage
from kvpager.tiers.base import TIERS

if TYPE_CHECKING:
    from kvpager.slab import SlabStore

__all__ = ["SlabTier"]


@TIERS.register("slab")
class SlabTier:
    """Tier 3 on disk: slab files of checked records, one record a block and layer, written behind and read back verified.

    Source: the backing store of the design; its format is drawn in `kvpager.slab.record`.

    Parameters
    ----------
    table : UnitTable
        Whose units these are.
    store : SlabStore
        Where they go; its parts are the table's units of one block and layer. May serve several tables.
    arena : Arena
        That moves name slots of.
    key_slots : callable, optional
        Where the keys of units stay in the arena: units are then values, and a record holds all heads' keys before them.

    Attributes
    ----------
    read_units, written_units : dict of str to int
        By the move's reason, when submitted.
    lost : int32
        Units that could not be served, in the order of the answers.
    """

    number = NVME
    align_bytes = 4096

    def __init__(self, table: UnitTable, store: SlabStore, arena: Arena, key_slots: Callable[[Ids], Ids] | None = None) -> None:
        shape = (store.shape.layers, store.shape.parts, store.shape.part_bytes)
        wanted = (table.num_layers, table.heads_per_layer * (1 if key_slots is None else 2), table.unit_bytes)
        if shape != wanted:
            raise InvariantError(f"a store of {shape} (layers, parts, bytes of a part) cannot hold a table's units of {wanted}")
        self.table, self.store, self.arena, self._key_slots = table, store, arena, key_slots
        self.capacity_bytes = store.capacity_bytes
        self.read_units: dict[str, int] = {}
        self.written_units: dict[str, int] = {}
        self.lost: Ids = np.zeros(0, np.int32)
        self._keys = BlockKeys(table.units_per_block, table.heads_per_layer)
        self._moves: dict[int, tuple[Move, NDArray[np.intp], Passage]] = {}  # by ticket, with each unit's place in the answer

    def submit(self, move: Move, slots: Ids) -> None:
        """Start to write (`dst` is this tier) or to read (`src` is); `slots` are aligned with the move's units.

        Raises `TierBusy` if too much waits to be written, `StorageFull` if there is no room, and `InvariantError` if the move
        does not concern this tier, writes part of a record, or reads what was never written (law 10).
        """
        if move.dst == self.number:
            self._write(move, slots)
            counted = self.written_units
        elif move.src == self.number:
            blocks, layers, heads = self._keys.split(move.units)
            keys = self.keys_of(blocks)
            if not keys.all():
                raise InvariantError(f"move {move.id} reads units that tier {self.number} does not hold (law 10)")
            parts = heads if self._key_slots is None else heads + np.int32(self.table.heads_per_layer)
            passage = self.arena.incoming(slots)
            ticket = self.store.read(keys, layers, parts, *passage[1:])
            self._moves[ticket] = move, np.arange(len(slots)), passage
            counted = self.read_units
        else:
            raise InvariantError(f"move {move.id} from tier {move.src} to {move.dst} does not concern tier {self.number}")
        counted[move.why] = counted.get(move.why, 0) + len(move.units)

    def wait(self, moves: Sequence[int], deadline_s: float) -> list[Done]:
        tickets = [ticket for ticket, (move, *_) in self._moves.items() if move.id in moves]
        return [self._done(ticket, ok) for ticket, ok in self.store.wait(tickets, deadline_s)]

    def poll(self) -> list[Done]:
        return [self._done(ticket, ok) for ticket, ok in self.store.wait(list(self._moves), 0.0)]

    def used_bytes(self) -> int:
        """Payload that the store holds, of other tables and sessions too."""
        return self.store.used_bytes

    def forget(self, units: Ids) -> None:
        """Drop `units`; a block's records go with its last unit, unless a session on disk owns them (`adopt`)."""
        self.store.forget(self._keys.forget(units))

    def check(self) -> None:
        """Raise `InvariantError` if the store contradicts itself."""
        self.store.check()

    def keys_of(self, blocks: Ids) -> NDArray[np.uint64]:
        """Return the store's keys of the table's `blocks`, uint64; 0 = it has none."""
        return self._keys.of(blocks)

    def adopt(self, blocks: Ids, keys: NDArray[np.uint64]) -> None:
        """Say that the table's `blocks` are in the store under `keys`, and that a session on disk owns them.

        Forgetting the blocks then leaves the records. ``adopt(blocks, keys_of(blocks))`` hands own blocks over.
        """
        self._keys.set(blocks, keys, borrowed=True)

    def disown(self, keys: NDArray[np.uint64]) -> None:
        """Say that no session on disk owns `keys` any more: records of the table's blocks go with those, others at once."""
        self.store.forget(self._keys.disown(keys))

    def load_keys(self, units: Ids, slots: Ids) -> NDArray[np.bool_]:
        """Read the keys of `units` into `slots`, and wait; return which could be served, bool [units]."""
        blocks, layers, heads = self._keys.split(units)
        passage = self.arena.incoming(slots)
        ((_, good),) = self.store.wait([self.store.read(self.keys_of(blocks), layers, heads, *passage[1:])], float("inf"))
        self.arena.arrived(passage, good)
        return good

    def _write(self, move: Move, slots: Ids) -> None:
        heads = self.table.heads_per_layer
        order = np.argsort(move.units)
        records = whole_records(move.units[order], heads)
        blocks, layers, _ = self._keys.split(records[:, 0])
        new = self._keys.without(blocks)
        self._keys.set(new, self.store.new_keys(len(new)), borrowed=False)
        parts = slots[order].reshape(-1, heads)
        if self._key_slots is not None:
            parts = np.concatenate([self._key_slots(records), parts], 1)
        passage = self.arena.outgoing(parts.ravel())
        ticket = self.store.write(self._keys.of(blocks), layers, passage.memory, passage.places.reshape(parts.shape))
        self._moves[ticket] = move, np.argsort(order) // heads, passage

    def _done(self, ticket: int, ok: NDArray[np.bool_]) -> Done:
        move, answer, passage = self._moves.pop(ticket)
        ok = ok[answer]
        if move.src == self.number:
            self.arena.arrived(passage, ok)
            if not ok.all():
                self.lost = np.concatenate([self.lost, move.units[~ok]])
        return Done(move.id, ok, int(np.count_nonzero(ok)) * self.table.unit_bytes)
