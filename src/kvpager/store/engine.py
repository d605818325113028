"""The thread that owns a store's files. Callers hand it what is to be done and wait, no longer than they want to.

Whatever a disk does, a caller is back at its deadline: no caller's thread ever waits for a file.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput, StoreError
from kvpager.slab.files import Files
from kvpager.store.catalogue import Catalogue
from kvpager.store.core import Core, StoreStats
from kvpager.store.entry import BlockInfo
from kvpager.store.eventlog import EventLog
from kvpager.store.eviction.base import EVICTIONS
from kvpager.store.journal import Journal
from kvpager.store.rack import Rack
from kvpager.store.requests import Bytes, Job, Request
from kvpager.store.room import Room

__all__ = ["Engine", "Settings"]


class Settings:
    """How a store is to be kept; the process that owns it decides.

    Parameters
    ----------
    path : Path
        The directory.
    capacity : int
        Bytes of slab files at most; 0: as before.
    policy : str
        Of eviction, by name.
    quotas : dict of bytes to int
        Bytes on disk by tenant's id.
    low, high : float
        Watermarks, shares of the capacity.
    quarantine_s : float
        For how long a block that failed is not found.
    staging_bytes : int
        Of memory for each size of places.
    files : Files
        The file layer.
    log : Path, optional
        Where events are logged.
    """

    def __init__(
        self, path: Path, capacity: int, policy: str, quotas: Mapping[bytes, int], low: float, high: float, quarantine_s: float,
        staging_bytes: int, files: Files, log: Path | None = None,
    ) -> None:  # fmt: skip
        if not 0 < low <= high <= 1:
            raise BadInput(f"watermarks low = {low}, high = {high}: give shares, 0 < low <= high <= 1")
        self.path, self.capacity, self.policy, self.quotas, self.low, self.high = path, capacity, policy, quotas, low, high
        self.quarantine_s, self.staging_bytes, self.files, self.log = quarantine_s, staging_bytes, files, log
        self.make_policy = EVICTIONS[policy]


class Engine:
    """A store that this process owns. Its methods may be called from any thread.

    Parameters
    ----------
    settings : Settings
        See there.
    lock : int
        Descriptor of the directory's lock, which is held; given back at the end.

    Raises
    ------
    StoreError
        If the directory cannot be used.
    """

    def __init__(self, settings: Settings, lock: int) -> None:
        self._files, self._lock = settings.files, lock
        self._waiting = threading.Condition()
        self._inbox: deque[tuple[Request, Callable[[], None]]] = deque()
        self._awake = self._closing = False
        self._broken: Exception | None = None
        self.stats = StoreStats()
        try:
            self._rack = Rack(settings.path, settings.capacity, settings.staging_bytes, settings.files, self._wake)
            try:
                self._log = None if settings.log is None else EventLog(settings.log)
                catalogue = Catalogue(settings.make_policy(), journal=Journal(self._log))
                self._room = Room(self._rack, catalogue, settings.low, settings.high, settings.quotas)
                self._core = Core(self._rack, catalogue, self.stats, self._room, settings.quarantine_s)
            except BaseException:
                self._rack.close()
                raise
        except BaseException as error:
            self._files.close(lock)
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise StoreError(f"store {str(settings.path)!r} cannot be opened ({error.strerror}): check the disk") from error
            raise
        self.stats.notices = self._rack.notices
        self._thread = threading.Thread(target=self._run, name="kvpager-store", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def get(self, digests: list[bytes], memories: list[Bytes], lends: bool = False) -> Request:
        """Begin to read blocks into `memories`, each as long as its block; `lends`: see `Request`."""
        request = Request(len(digests), lends)
        jobs = [Job(request, number, *both) for number, both in enumerate(zip(digests, memories, strict=True))]
        return self._post(request, lambda: self._core.get(jobs))

    def put(
        self, digests: list[bytes], memories: list[Bytes], parents: list[bytes], tenant: bytes, namespace: bytes,
        lends: bool = False,
    ) -> Request:  # fmt: skip
        """Begin to write blocks; `parents` are digests or empty; `lends`: see `Request`."""
        request = Request(len(digests), lends)
        jobs = [Job(request, number, *both) for number, both in enumerate(zip(digests, memories, strict=True))]
        return self._post(request, lambda: self._core.put(jobs, parents, tenant, namespace))

    def too_late(self, digests: list[bytes]) -> None:
        """Say that reads of these blocks were given up."""
        self._post(Request(0), lambda: self._core.too_late(digests))

    def lengths(self, digests: list[bytes]) -> Request:
        """Ask for the bytes of blocks; -1 of those that are not there."""
        return self.ask(lambda: self._core.lengths(digests))

    def delete(self, digest: bytes) -> Request:
        """Begin to delete a block; the answer is whether it was there."""
        request = Request(1)
        return self._post(request, lambda: self._core.delete(digest, request))

    def pin(self, digest: bytes, seconds: float) -> Request:
        """Pin a block; the answer is whether it is there."""

        def do() -> bool:
            entry = self._core.catalogue.usable(digest)
            if entry is not None:
                self._core.catalogue.pin(entry, seconds)
            return entry is not None

        return self.ask(do)

    def scan(self) -> Request:
        """Ask for all blocks."""
        return self.ask(
            lambda: [
                BlockInfo(one.digest, one.parent, one.tenant, one.namespace, one.length, one.reads)
                for one in self._core.catalogue
            ]
        )

    def flush(self) -> Request:
        """Make what is acknowledged durable."""
        return self.ask(self._core.flush)

    def document(self) -> Request:
        """Ask for the counts, and what there is."""
        return self.ask(self._document)

    def verify(self) -> Request:
        """Read everything back; the answer lists what is damaged, as ``[where, what]``."""
        return self.ask(
            lambda: [
                [f"{shelf.folder.name}/{damage.where}", damage.what]
                for shelf in self._rack.shelves.values()
                for damage in shelf.store.verify()
            ]
        )

    def sweep(self) -> Request:
        """Delete what was set aside, and slabs that hold nothing; the answer is the bytes given back."""

        def do() -> int:
            before = self._rack.disk_bytes
            self._core.flush()
            for shelf in self._rack.shelves.values():
                shelf.store.drain()
            self._core.settle()
            self._rack.sweep()
            self._room.take_back()
            return before - self._rack.disk_bytes

        return self.ask(do)

    def ask(self, do: Callable[[], Any]) -> Request:
        """Have `do` done by the store's thread; its result is the answer."""
        request = Request(1)

        def answer() -> None:
            request.result = do()
            request.answer(0, True)

        return self._post(request, answer)

    def close(self, seconds: float) -> None:
        """Finish what is under way, make it durable, and give the directory back.

        Raises
        ------
        StoreError
            If that takes longer than `seconds`, or the disk refuses.
        """
        with self._waiting:
            self._closing = True
            self._waiting.notify()
        _OPEN.discard(self)
        self._thread.join(min(seconds, threading.TIMEOUT_MAX))
        if self._thread.is_alive():
            raise StoreError("the store could not be closed in time, since its disk does not answer: end the process")
        if self._broken is not None:
            error, self._broken = self._broken, None
            raise error

    def descriptors(self) -> list[int]:
        """Those that tell other processes that this one is there."""
        return [self._lock, *(shelf.store.lock_fd for shelf in self._rack.shelves.values())]

    def let_go(self) -> None:
        """In a child that was forked: its threads are not here, and locks must not live on in it."""
        for fd in self.descriptors():
            os.close(fd)
        self._waiting = threading.Condition()
        self._broken = StoreError("the store was opened before this process was forked: open it here")

    def _document(self) -> dict[str, Any]:
        catalogue, rack, stats = self._core.catalogue, self._rack, self.stats
        shelves = rack.shelves.values()
        reading, writing = self._core.reading, self._core.writing
        return {
            **asdict(self.stats), "evicted": self._room.evicted, "blocks": len(catalogue), "used_bytes": catalogue.used_bytes,
            "disk_bytes": rack.disk_bytes, "capacity_bytes": rack.capacity, "set_aside_bytes": rack.set_aside_bytes,
            "tenants": {tenant.hex(): taken for tenant, taken in catalogue.tenant_bytes.most_common()},
            "quotas": {tenant.hex(): quota for tenant, quota in self._room.quotas.items()}, "held_bytes": catalogue.held_bytes,
            "under_way": {"reads": reading, "writes": writing}, "journal": catalogue.journal.document(),
            "unaccounted": {
                "reads": stats.asked - stats.hits - stats.misses - stats.failed - reading,
                "writes": stats.put - stats.stored - stats.refused - stats.unwritten - writing,
                "bytes": catalogue.journal.balance_bytes - catalogue.held_bytes,
            },
            "events_lost": self._log.lost if self._log else 0,
            "io_errors": sum(shelf.store.stats.io_errors for shelf in shelves),
            "checksum_failures": sum(shelf.store.stats.checksum_failures for shelf in shelves),
            "notices": [*self.stats.notices, *(notice for shelf in shelves for notice in shelf.store.stats.notices)],
        }  # fmt: skip

    def _post(self, request: Request, do: Callable[[], None]) -> Request:
        with self._waiting:
            if self._closing or self._broken is not None:
                why = f" after an error ({self._broken})" if self._broken else ""
                raise StoreError(f"the store is closed{why}: open it again") from self._broken
            self._inbox.append((request, do))
            self._waiting.notify()
        return request

    def _wake(self) -> None:
        with self._waiting:
            self._awake = True
            self._waiting.notify()

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except Exception as error:  # a bug, or a disk that refuses what must not fail: told to whoever calls next
            self._broken = error
        for request, _ in self._inbox:
            request.fail(StoreError("the store was closed: open it again"))
        try:
            self._rack.close()
        except Exception as error:
            self._broken = self._broken or error
        finally:
            self._files.close(self._lock)
            if self._log is not None:
                self._log.close(1.0)

    def _round(self) -> bool:
        """Do what there is to do; False at the end."""
        with self._waiting:
            while not (self._inbox or self._awake or self._closing):
                self._waiting.wait()
            inbox, self._inbox, self._awake = self._inbox, deque(), False
        for request, do in inbox:
            try:
                do()
            except Exception as error:  # it is the caller's
                request.fail(error)
        self._core.settle()
        if self._closing and not inbox:
            if self._core.idle:
                self._core.flush()
                return False
            with self._waiting:
                while not (self._inbox or self._awake):
                    self._waiting.wait()
        return True


_OPEN: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_OPEN):
        engine.let_go()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)
