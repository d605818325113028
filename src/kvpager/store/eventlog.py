"""A log of a store's events: one JSON object a line. Off unless `kvpager.store.open` is given a file for it.

A thread of its own writes it, so that a slow disk holds nobody; what does not fit its queue is dropped and counted.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput

__all__ = ["EventLog"]

_MOST_WAITING = 65_536


class EventLog:
    """A file that events are appended to. Call it with one.

    Parameters
    ----------
    path : Path
        Made, for its owner alone, if it is not there.

    Attributes
    ----------
    lost : int
        Events that are not in it.

    Raises
    ------
    BadInput
        If it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BadInput(f"log {str(path)!r} cannot be written ({error.strerror}): name another file") from error
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="kvpager-store-log", daemon=True)
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        """Have `event` written, with the time of day before it."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put({"time": time.time(), **event})
        else:
            self.lost += 1

    def close(self, seconds: float) -> None:
        """Write what waits, for so long at most."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                os.write(self._fd, json.dumps(event).encode() + b"\n")
            except OSError:
                self.lost += 1
        os.close(self._fd)
