"""A store that another process owns. When that one ends, whichever client comes first takes its place."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from kvpager.errors import StoreError
from kvpager.store.engine import Settings
from kvpager.store.entry import BlockInfo
from kvpager.store.rack import lock
from kvpager.store.requests import Bytes, Job, Request
from kvpager.store.server import Owner
from kvpager.store.wire import connect, cut, error_from, receive, send

__all__ = ["Client"]

_THREADS = 4
_MOST_BODY_BYTES = 32 << 20
_RETRY_S = 0.02


class Client:
    """Asks the owner, or is the owner once that one has gone. Its methods may be called from any thread.

    Parameters
    ----------
    settings : Settings
        For when it becomes the owner.
    deadline_s : float
        How long the owner is waited for.

    Raises
    ------
    StoreError
        If the directory cannot be used, or its owner does not answer.
    """

    def __init__(self, settings: Settings, deadline_s: float) -> None:
        self._settings, self._deadline_s = settings, deadline_s
        self._owner: Owner | None = None
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        link = self._reach(time.monotonic() + deadline_s)
        if link is not None:
            self._idle.append(link)
        for _ in range(_THREADS):
            threading.Thread(target=self._run, name="kvpager-store-client", daemon=True).start()

    def get(self, digests: list[bytes], memories: list[Bytes], lends: bool = False) -> Request:
        """See `Engine`."""
        if (owner := self._here()) is not None:
            return owner.get(digests, memories, lends)
        request = Request(len(digests), lends)
        jobs = [Job(request, number, *both) for number, both in enumerate(zip(digests, memories, strict=True))]
        for some in _portions(jobs):
            self._later(request, lambda some=some: self._get(some))  # type: ignore[misc]
        return request

    def put(
        self, digests: list[bytes], memories: list[Bytes], parents: list[bytes], tenant: bytes, namespace: bytes,
        lends: bool = False,
    ) -> Request:  # fmt: skip
        """See `Engine`."""
        if (owner := self._here()) is not None:
            return owner.put(digests, memories, parents, tenant, namespace, lends)
        request = Request(len(digests), lends)
        jobs = [Job(request, number, *both) for number, both in enumerate(zip(digests, memories, strict=True))]
        for some in _portions(jobs):
            self._later(request, lambda some=some: self._put(some, parents, tenant, namespace))  # type: ignore[misc]
        return request

    def too_late(self, digests: list[bytes]) -> None:
        """See `Engine`."""
        if (owner := self._here()) is not None:
            owner.too_late(digests)  # of a client the owner counts what is late by its own deadline

    def lengths(self, digests: list[bytes]) -> Request:
        """See `Engine`."""
        return self._ask("lengths", digests)

    def delete(self, digest: bytes) -> Request:
        """See `Engine`."""
        return self._ask("delete", [digest])

    def pin(self, digest: bytes, seconds: float) -> Request:
        """See `Engine`."""
        return self._ask("pin", [digest], {"for": seconds})

    def scan(self) -> Request:
        """See `Engine`."""
        return self._ask("scan", [])

    def flush(self) -> Request:
        """See `Engine`."""
        return self._ask("flush", [])

    def document(self) -> Request:
        """See `Engine`."""
        return self._ask("document", [])

    def verify(self) -> Request:
        """See `Engine`."""
        return self._ask("verify", [])

    def sweep(self) -> Request:
        """See `Engine`."""
        return self._ask("sweep", [])

    def close(self, seconds: float) -> None:
        """Leave the store; give the directory back if it is this process's by now."""
        self._closed = True
        for _ in range(_THREADS):
            self._work.put(None)
        with self._lock:
            owner, self._owner = self._owner, None
            for link in self._idle:
                link.close()
            self._idle.clear()
        if owner is not None:
            owner.close(seconds)

    def _here(self) -> Owner | None:
        """The owner, if it is this process."""
        if self._closed:
            raise StoreError("the store is closed: open it again")
        return self._owner

    def _ask(self, word: str, digests: list[bytes], more: dict[str, Any] | None = None) -> Request:
        self._here()
        request = Request(1)

        def do() -> None:
            said, _ = self._talk({"word": word, "digests": [digest.hex() for digest in digests], **(more or {})})
            result = said.get("result")
            if word == "scan":
                result = [_info_of(one) for one in result or []]
            if "late" not in said:
                request.result = result
                request.answer(0, True)

        return self._later(request, do)

    def _later(self, request: Request, do: Callable[[], None]) -> Request:
        def safely() -> None:
            try:
                do()
            except TimeoutError:
                pass  # the caller has its own deadline, and is no better off for knowing earlier
            except Exception as error:  # it is the caller's
                request.fail(error)

        self._work.put(safely)
        return request

    def _run(self) -> None:
        while (do := self._work.get()) is not None:
            do()

    def _get(self, jobs: list[Job]) -> None:
        jobs = [job for job in jobs if not job.request.given_up]
        head = {"word": "get", "digests": [job.digest.hex() for job in jobs], "lengths": [len(job.memory) for job in jobs]}
        said, body = self._talk(head)
        blocks = iter(cut(body, [len(job.memory) for job, ok in zip(jobs, said["ok"], strict=True) if ok]))
        for job, ok in zip(jobs, said["ok"], strict=True):
            if ok:
                block = next(blocks)

                def copy(memory: Bytes, block: Bytes = block) -> None:
                    memory[:] = block

                job.with_memory(copy)
            job.answer(ok)

    def _put(self, jobs: list[Job], parents: list[bytes], tenant: bytes, namespace: bytes) -> None:
        copies: list[Bytes] = []
        jobs = [job for job in jobs if job.with_memory(lambda memory: copies.append(memory.copy()))]
        head = {
            "word": "put", "digests": [job.digest.hex() for job in jobs], "lengths": [len(one) for one in copies],
            "parents": [parents[job.number].hex() for job in jobs], "tenant": tenant.hex(), "namespace": namespace.hex(),
        }  # fmt: skip
        said, _ = self._talk(head, copies)
        for job, ok in zip(jobs, said["ok"], strict=True):
            job.answer(ok)

    def _talk(self, head: dict[str, Any], body: list[Bytes] | None = None) -> tuple[dict[str, Any], Bytes]:
        """Ask the owner, again if it changes meanwhile; raise what it answers with."""
        deadline = time.monotonic() + self._deadline_s
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            link = (
                link or self._reach(deadline) or connect(self._settings.path, self._deadline_s)
            )  # to itself, if it is the owner
            try:
                left = max(deadline - time.monotonic(), 0.01)
                link.settimeout(left + 1)
                send(link, {**head, "seconds": left}, body or [])
                answer = receive(link)
            except BaseException as error:
                link.close()
                if isinstance(error, ConnectionError) and time.monotonic() < deadline:
                    continue
                raise
            if answer is None:
                link.close()
                continue
            with self._lock:
                self._idle.append(link)
            said, blocks = answer
            if "error" in said:
                raise error_from(said["error"])
            return said, blocks

    def _reach(self, deadline: float) -> socket.socket | None:
        """Return a connection to the owner; None if this process is the owner, which it becomes if there is none."""
        while not self._closed:
            with self._lock:
                if self._owner is not None:
                    return None
                with contextlib.suppress(OSError):
                    return connect(self._settings.path, max(deadline - time.monotonic(), 0.01))
                fd = lock(self._settings.path, self._settings.files)
                if fd >= 0:
                    self._owner = Owner(self._settings, fd)
                    return None
            if time.monotonic() > deadline:
                raise StoreError(
                    f"store {str(self._settings.path)!r} is in use by another process that does not answer: end that one"
                )
            time.sleep(_RETRY_S)
        raise StoreError("the store is closed: open it again")


def _portions(jobs: list[Job]) -> list[list[Job]]:
    """Cut jobs into messages."""
    found: list[list[Job]] = []
    room = 0
    for job in jobs:
        if not found or room + len(job.memory) > _MOST_BODY_BYTES or len(found[-1]) >= 4096:
            found.append([])
            room = 0
        found[-1].append(job)
        room += len(job.memory)
    return found


def _info_of(said: list[Any]) -> BlockInfo:
    digest, parent, tenant, namespace = map(bytes.fromhex, said[:4])
    return BlockInfo(digest, parent, tenant, namespace, *said[4:])
