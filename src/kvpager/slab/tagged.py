"""A store of opaque blocks: one part, one layer, and a tag beside each that says what it is.

What it drops it wipes: a place that holds nothing has no header, so that no crash brings back what was dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import InvariantError
from kvpager.slab.files import Files
from kvpager.slab.io import Workers
from kvpager.slab.lent import LentReads
from kvpager.slab.reads import Reading, Request
from kvpager.slab.record import U64
from kvpager.slab.store import SlabStore
from kvpager.slab.table import Records
from kvpager.slab.transfer import Lender
from kvpager.slab.writes import Wipes

__all__ = ["TaggedStore"]

_UNBOUNDED = 100_000  # slabs: what a file name can count; `growth` is the bound


class TaggedStore(SlabStore):
    """Blocks of up to `block_bytes` bytes, each with a tag. Grows only as far as `growth` allows.

    Parameters
    ----------
    path : Path
        The directory.
    block_bytes, tag_bytes, slab_bytes : int
        See `SlabStore`.
    fingerprint : str
        Of those who write.
    files : Files
        The file layer.
    workers : Workers
        I/O threads.
    wake : callable
        Called by an I/O thread when there is an answer.
    """

    def __init__(
        self, path: Path, block_bytes: int, tag_bytes: int, slab_bytes: int, fingerprint: str, files: Files, workers: Workers,
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(
            path, parts=1, part_bytes=block_bytes, layers=1, fingerprint=fingerprint, capacity_bytes=_UNBOUNDED * slab_bytes,
            slab_bytes=slab_bytes, queue_bytes=1 << 62, files=files, tag_bytes=tag_bytes, workers=workers, wake=wake,
        )  # fmt: skip
        self._contents.growth = 0
        self._no_memory = np.empty((0, block_bytes), np.uint8)
        self._believed = self._contents.hinted

    @property
    def lock_fd(self) -> int:
        """Descriptor of the directory's lock."""
        return self._contents.folder.lock_fd

    @property
    def free(self) -> int:
        """Places that can be written now."""
        self._settle()
        return self._contents.free

    @property
    def coming(self) -> bool:
        """Whether places come free with what is under way."""
        return bool(self._freed) or any(isinstance(ticket, Wipes) for ticket in self._open.values())

    def grow(self, slabs: int) -> None:
        """Allow `slabs` more slab files."""
        self._contents.growth = slabs

    def put(self, keys: U64, tags: NDArray[np.uint8], lender: Lender) -> int:
        """Start to write blocks of callers under `keys`; return the ticket. See `SlabStore.write`."""
        nothing = np.zeros(len(keys), np.int32)
        return self.write(keys, nothing, self._no_memory, nothing[:, None], tags, lender)

    def get(self, keys: U64, lender: Lender) -> int:
        """Start to read blocks for callers; return the ticket. See `SlabStore.read`."""
        nothing = np.zeros(len(keys), np.int32)
        return self._ask(Request(keys, nothing, nothing, self._no_memory, nothing, lender))

    def wipe(self, keys: U64) -> int:
        """Drop the blocks `keys`, none of which is being written, for good, and return the ticket.

        Once it is answered no crash brings them back. Room of which a header could not be overwritten is not used again.
        """
        self._settle()
        if self._contents.hinted:
            self._forgotten.update(keys.tolist())
        return self._start(Wipes(self._number(), self._disk, self._contents.drop(keys.tolist())))

    def _reads(self, number: int, request: Request, units: NDArray[np.intp] | None) -> Reading:
        """The same for blocks, which all have callers."""
        if request.lender is None:
            raise InvariantError("a block is read for nobody: use get")
        held = request.held(self._contents.table, units)
        return LentReads(number, len(request.keys), self._disk, held, request.lender, wary=self._contents.hinted)

    def slabs_of(self, keys: U64) -> NDArray[np.int64]:
        """Number of the slab that each of `keys` is in; negative if none."""
        return self._contents.table.find(keys, np.zeros(len(keys), np.int32)) // self.shape.places

    def all(self) -> Records:
        """Everything that is held."""
        return self._contents.table.all()

    def rebuilt(self) -> bool:
        """Whether the index misled and the table was filled anew from the headers; says so once."""
        if self._believed and not self._contents.hinted:
            self._believed = False
            return True
        return False

    def give_back(self) -> None:
        """Delete the slabs that hold nothing, but for the first."""
        self._contents.changing()
        self._contents.tidy()
