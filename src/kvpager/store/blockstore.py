"""The block store as its users see it: keys and buffers, deadlines, one tenant of one namespace at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput, StoreError
from kvpager.store.entry import BlockInfo
from kvpager.store.keys import Names, Namespace
from kvpager.store.requests import Bytes, Request, bytes_of
from kvpager.store.sizes import MOST_BLOCK_BYTES

__all__ = ["Backend", "BlockStore"]

Flags = NDArray[np.bool_]


class Backend(Protocol):
    """Where the blocks are: in this process, or behind a socket. See `Engine`, which is the first."""

    def get(self, digests: list[bytes], memories: list[Bytes], lends: bool = False) -> Request:
        """Begin to read."""

    def put(
        self, digests: list[bytes], memories: list[Bytes], parents: list[bytes], tenant: bytes, namespace: bytes,
        lends: bool = False,
    ) -> Request:  # fmt: skip
        """Begin to write."""

    def too_late(self, digests: list[bytes]) -> None:
        """Say that reads were given up."""

    def lengths(self, digests: list[bytes]) -> Request:
        """Ask for lengths."""

    def delete(self, digest: bytes) -> Request:
        """Begin to delete."""

    def pin(self, digest: bytes, seconds: float) -> Request:
        """Pin a block."""

    def scan(self) -> Request:
        """Ask for all blocks."""

    def flush(self) -> Request:
        """Make durable."""

    def document(self) -> Request:
        """Ask for counts."""

    def verify(self) -> Request:
        """Read everything back."""

    def sweep(self) -> Request:
        """Give back what is not needed."""

    def close(self, seconds: float) -> None:
        """End."""


class BlockStore:
    """Blocks of bytes by key, on disk, checked at every read. May be used from several threads.

    Nothing is ever served but what was put under the very key, namespace and tenant. A block that was acknowledged (`put`
    returned True) is there until it is evicted or deleted, whatever happens to the process; after `flush` also whatever
    happens to the machine. Every call ends at its deadline, and leaves the caller's memory alone from then on: bytes are
    copied. Who asks with ``lend=True`` spares the copy where a buffer begins on a page and is as long as a place of the store
    (1, 1.25, 1.5 or 1.75 times a power of two, from 64 KiB on): the disk itself then reads into it and writes from it, and
    after a call that ended late it is the caller's again only when `settle` says so.

    Parameters
    ----------
    backend : Backend
        Where the blocks are.
    namespace : Namespace
        What must be equal for one run to use another's blocks.
    tenant : bytes
        Salt: blocks of another tenant cannot be named.
    deadline_s : float
        For each call that is given none of its own.
    owner : bool
        Whether `close` closes the backend.
    """

    def __init__(self, backend: Backend, namespace: Namespace, tenant: bytes, deadline_s: float, owner: bool = True) -> None:
        self._backend, self._namespace, self._deadline_s, self._owner = backend, namespace, deadline_s, owner
        self._names = Names(namespace, tenant)
        self._numbers = count(1)
        self._open: dict[int, tuple[Request, list[bytes]]] = {}
        self._lent: list[Request] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def of_tenant(self, tenant: bytes, namespace: Namespace | None = None) -> BlockStore:
        """Return the same store for another tenant, and for another namespace if one is given. It needs no closing."""
        return BlockStore(self._backend, namespace or self._namespace, tenant, self._deadline_s, owner=False)

    def digest(self, key: bytes) -> bytes:
        """Return the 32 bytes that the block `key` is kept under, which `scan` tells."""
        return self._names.digest(key)

    def put(self, key: bytes, buffer: Any, parent: bytes | None = None, deadline_s: float | None = None) -> bool:
        """Keep the bytes of `buffer` under `key`, in place of what was there; return whether they are acknowledged.

        Parameters
        ----------
        key : bytes
            0 to 10,000 bytes.
        buffer : buffer
            0 bytes to 64 MiB.
        parent : bytes, optional
            Key of the block before it, which leaves only after this one.
        deadline_s : float, optional
            Seconds to wait at most. What is not acknowledged by then may be kept all the same.
        """
        return bool(self.put_many([key], [buffer], [parent], deadline_s)[0])

    def put_many(
        self, keys: Sequence[bytes], buffers: Sequence[Any], parents: Sequence[bytes | None] | None = None,
        deadline_s: float | None = None, *, lend: bool = False,
    ) -> Flags:  # fmt: skip
        """Keep several blocks; return bool [blocks], which are acknowledged. See `put`; `lend`: see `BlockStore`."""
        request = self._put(keys, buffers, parents, lend)
        self._late(request, self._seconds(deadline_s))
        return request.ok.copy()

    def get(self, key: bytes, buffer: Any, deadline_s: float | None = None) -> bool:
        """Fill `buffer` with the block `key`; return whether that was done. If not, `buffer` may hold anything.

        Raises
        ------
        BadInput
            If the block is of another length than `buffer`: see `length`.
        """
        return bool(self.get_many([key], [buffer], deadline_s)[0])

    def get_many(
        self, keys: Sequence[bytes], buffers: Sequence[Any], deadline_s: float | None = None, *, lend: bool = False
    ) -> Flags:
        """Fill several buffers; return bool [blocks], which are filled. See `get`; `lend`: see `BlockStore`."""
        digests, request = self._get(keys, buffers, lend)
        if self._late(request, self._seconds(deadline_s)):
            self._backend.too_late([digests[number] for number in request.unanswered])
        return request.ok.copy()

    def contains(self, key: bytes, deadline_s: float | None = None) -> bool:
        """Whether the block `key` is there."""
        return bool(self.contains_many([key], deadline_s)[0])

    def contains_many(self, keys: Sequence[bytes], deadline_s: float | None = None) -> Flags:
        """Whether blocks are there, bool [keys]; False if that is not known at the deadline."""
        lengths = self._result(self._backend.lengths([self.digest(key) for key in keys]), [-1] * len(keys), deadline_s)
        return np.array(lengths, np.int64) >= 0

    def length(self, key: bytes, deadline_s: float | None = None) -> int | None:
        """Return the bytes of the block `key`; None if it is not there."""
        (length,) = self._result(self._backend.lengths([self.digest(key)]), [-1], deadline_s)
        return None if length < 0 else int(length)

    def delete(self, key: bytes, deadline_s: float | None = None) -> bool:
        """Delete the block `key`, which no crash brings back then; return whether it was there.

        Raises
        ------
        StoreError
            If the disk refuses: the block is not served, but may be back when the store is opened again.
        """
        return bool(self._result(self._backend.delete(self.digest(key)), False, deadline_s))

    def pin(self, key: bytes, seconds: float, deadline_s: float | None = None) -> bool:
        """Keep the block `key` from being evicted for `seconds` from now, 0: no longer; return whether it is there.

        A pin is the process's: it ends when the store's owner closes it.
        """
        if not 0 <= seconds < math.inf:
            raise BadInput(f"a pin of {seconds} seconds: give a number from 0 on")
        return bool(self._result(self._backend.pin(self.digest(key), seconds), False, deadline_s))

    def submit_put(
        self, keys: Sequence[bytes], buffers: Sequence[Any], parents: Sequence[bytes | None] | None = None, *, lend: bool = False
    ) -> int:
        """Begin to keep blocks; return the ticket. The buffers must not change until it is answered or given up.

        `lend`: see `BlockStore`.
        """
        return self._ticket(self._put(keys, buffers, parents, lend), [])

    def submit_get(self, keys: Sequence[bytes], buffers: Sequence[Any], *, lend: bool = False) -> int:
        """Begin to fill buffers; return the ticket. They are the store's until it is answered or given up.

        `lend`: see `BlockStore`.
        """
        digests, request = self._get(keys, buffers, lend)
        return self._ticket(request, digests)

    def poll(self) -> list[tuple[int, Flags]]:
        """Return the answers that have come in: ticket, and bool [blocks]."""
        return self.wait([ticket for ticket, (request, _) in self._open.items() if request.done], 0.0)

    def wait(self, tickets: Collection[int], deadline_s: float) -> list[tuple[int, Flags]]:
        """Wait until `tickets` are answered, `deadline_s` seconds at most; return those that are. The others stay open."""
        answers, deadline = [], time.monotonic() + deadline_s
        for ticket in list(tickets):
            request, _ = self._open[ticket]
            if request.finishes(deadline - time.monotonic()):
                del self._open[ticket]
                self._late(request, 0.0)
                answers.append((ticket, request.ok.copy()))
        return answers

    def give_up(self, ticket: int) -> Flags:
        """Wait no longer for a ticket; return what is answered. From now on its buffers are the caller's, if not lent."""
        request, digests = self._open.pop(ticket)
        late = request.give_up()
        if late and request.lends:
            self._lent.append(request)
        if late and digests:
            self._backend.too_late([digests[number] for number in request.unanswered])
        answered: Flags = request.ok.copy()
        return answered

    def settle(self, deadline_s: float) -> bool:
        """Wait until the disk has none of the memory that was lent to it; return whether that is so by the deadline.

        What was answered is settled. Only calls that ended late, and tickets that were given up, leave something to wait for.
        """
        deadline = time.monotonic() + deadline_s
        self._lent = [request for request in self._lent if not request.settles(deadline - time.monotonic())]
        return not self._lent

    def scan(self, *, everyone: bool = False, deadline_s: float | None = None) -> list[BlockInfo]:
        """Return the blocks of this tenant and namespace, or of everyone. Keys are not kept: see `digest`."""
        found: list[BlockInfo] = self._result(self._backend.scan(), [], deadline_s)
        mine = self._names.tenant_id, self._names.namespace_id
        return found if everyone else [one for one in found if (one.tenant, one.namespace) == mine]

    def flush(self, deadline_s: float | None = None) -> bool:
        """Make everything that is acknowledged durable; return whether that was done by the deadline.

        Raises
        ------
        StoreError
            If the disk refuses.
        """
        request = self._backend.flush()
        return not request.wait(self._seconds(deadline_s))

    def stats(self, deadline_s: float | None = None) -> dict[str, Any]:
        """Return counts and sizes: see `StoreStats`. Empty if the store does not answer by the deadline."""
        found: dict[str, Any] = self._result(self._backend.document(), {}, deadline_s)
        return found

    def verify(self, deadline_s: float | None = None) -> list[list[str]]:
        """Read everything back; return what is damaged, each as where and what.

        Raises
        ------
        StoreError
            If that is not done by the deadline.
        """
        return list(self._sure(self._backend.verify(), "read back", deadline_s))

    def sweep(self, deadline_s: float | None = None) -> int:
        """Delete what was set aside and files that hold nothing; return the bytes given back. Raises as `verify`."""
        return int(self._sure(self._backend.sweep(), "swept", deadline_s))

    def close(self) -> None:
        """Finish what is under way, make it durable, and give the directory back."""
        for ticket in list(self._open):
            self.wait([ticket], self._deadline_s)
        if self._owner:
            self._owner = False
            self._backend.close(self._deadline_s)

    def _seconds(self, deadline_s: float | None) -> float:
        return self._deadline_s if deadline_s is None else deadline_s

    def _late(self, request: Request, seconds: float) -> int:
        """Wait, then give up; return how many blocks are not answered for."""
        try:
            return request.wait(seconds)
        finally:
            if request.lends and not request.settles(0.0):
                self._lent.append(request)

    def _result(self, request: Request, otherwise: Any, deadline_s: float | None) -> Any:
        return otherwise if request.wait(self._seconds(deadline_s)) else request.result

    def _sure(self, request: Request, what: str, deadline_s: float | None) -> Any:
        if request.wait(self._seconds(deadline_s)):
            raise StoreError(f"the store could not be {what} by the deadline: give it longer, or look at its disk")
        return request.result

    def _put(self, keys: Sequence[bytes], buffers: Sequence[Any], parents: Sequence[bytes | None] | None, lend: bool) -> Request:
        parents = parents or [None] * len(keys)
        _same_length(keys, buffers, parents)
        digests = [self.digest(key) for key in keys]
        behind = [b"" if parent is None else self.digest(parent) for parent in parents]
        memories = [bytes_of(buffer, writable=False) for buffer in buffers]
        longest = max((len(memory) for memory in memories), default=0)
        if longest > MOST_BLOCK_BYTES:
            raise BadInput(f"a block of {longest:,} bytes is too long: {MOST_BLOCK_BYTES:,} at most, cut it")
        if any(mine == parent for mine, parent in zip(digests, behind, strict=True)):
            raise BadInput("a block cannot stand behind itself: give the key of the one before it as parent")
        return self._backend.put(digests, memories, behind, self._names.tenant_id, self._names.namespace_id, lend)

    def _get(self, keys: Sequence[bytes], buffers: Sequence[Any], lend: bool) -> tuple[list[bytes], Request]:
        _same_length(keys, buffers, keys)
        digests = [self.digest(key) for key in keys]
        return digests, self._backend.get(digests, [bytes_of(buffer, writable=True) for buffer in buffers], lend)

    def _ticket(self, request: Request, digests: list[bytes]) -> int:
        ticket = next(self._numbers)
        self._open[ticket] = request, digests
        return ticket


def _same_length(*rows: Sequence[Any]) -> None:
    if len({len(row) for row in rows}) > 1:
        raise BadInput(f"{' and '.join(str(len(row)) for row in rows)} keys, buffers and parents: give one of each a block")
