"""The owner of a store serves the other processes that opened it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from kvpager.slab.files import aligned
from kvpager.store.engine import Engine, Settings
from kvpager.store.requests import Bytes, Request
from kvpager.store.wire import cut, listen, receive, said_error, send

__all__ = ["Owner"]

_Answer = tuple[dict[str, Any], list[Bytes]]


class Owner(Engine):
    """An engine that others can reach. A thread listens, and one serves each connection.

    Parameters
    ----------
    settings : Settings
        See there.
    lock : int
        Descriptor of the directory's lock, which is held.
    """

    def __init__(self, settings: Settings, lock: int) -> None:
        super().__init__(settings, lock)
        self._door = listen(settings.path)
        self._links: set[socket.socket] = set()
        self._folder, self._left = settings.path, False
        threading.Thread(target=self._listen, name="kvpager-store-door", daemon=True).start()

    def close(self, seconds: float) -> None:
        """See `Engine.close`; connections end first."""
        for link in [self._door, *self._links]:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        self._door.close()
        if not self._left:
            self._left = True
            (self._folder / "socket").unlink(missing_ok=True)  # while the lock is still held
        super().close(seconds)

    def descriptors(self) -> list[int]:
        """See `Engine`."""
        return [*super().descriptors(), self._door.detach(), *(link.detach() for link in self._links)]

    def _listen(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), name="kvpager-store-link", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        self._links.add(link)
        try:
            while (message := receive(link)) is not None:
                head, body = message
                try:
                    said, blocks = self._answer(head, body)
                except Exception as error:  # it is told to whoever asked
                    said, blocks = said_error(error), []
                send(link, said, blocks)
        except (OSError, ValueError, KeyError):
            pass  # the other process ended, or is none of ours
        finally:
            self._links.discard(link)
            link.close()

    def _answer(self, head: dict[str, Any], body: Bytes) -> _Answer:
        word, seconds = head["word"], head["seconds"]
        digests = [bytes.fromhex(digest) for digest in head.get("digests", [])]
        if word == "get":
            return self._got(digests, head["lengths"], seconds)
        if word == "put":
            parents = [bytes.fromhex(parent) for parent in head["parents"]]
            request = self.put(
                digests, cut(body, head["lengths"]), parents, bytes.fromhex(head["tenant"]), bytes.fromhex(head["namespace"])
            )
            request.wait(seconds)
            return {"ok": request.ok.tolist()}, []
        if word == "too late":
            self.too_late(digests)
            return {"result": None}, []
        ask: dict[str, Callable[[], Request]] = {
            "lengths": lambda: self.lengths(digests), "delete": lambda: self.delete(digests[0]), "scan": self.scan,
            "pin": lambda: self.pin(digests[0], head["for"]), "flush": self.flush, "document": self.document,
            "verify": self.verify, "sweep": self.sweep,
        }  # fmt: skip
        request = ask[word]()
        if request.wait(seconds):
            return {"late": True}, []
        if word == "scan":
            return {"result": [[part.hex() for part in one[:4]] + [one.length, one.reads] for one in request.result]}, []
        return {"result": request.result}, []

    def _got(self, digests: list[bytes], lengths: list[int], seconds: float) -> _Answer:
        memories = [aligned(length) for length in lengths]
        request = self.get(digests, memories, lends=True)
        if request.wait(seconds):
            self.too_late([digests[number] for number in request.unanswered])
        ok = request.ok.tolist()
        return {"ok": ok}, [memory for memory, good in zip(memories, ok, strict=True) if good]
