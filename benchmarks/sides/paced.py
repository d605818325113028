"""A disk that is slower than it is, in the store's file layer."""

from __future__ import annotations

import math
import threading
import time

from kvpager.slab.files import Buffer, Files


class PacedFiles(Files):
    """A disk that gives no more than so many bytes a second, to all threads together."""

    def __init__(self, bytes_per_s: float = math.inf) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock, self._free_at = threading.Lock(), 0.0

    def preadv(self, fd: int, buffers: list[Buffer], offset: int) -> int:
        """Read, then wait until the disk would be done."""
        got = super().preadv(fd, buffers, offset)
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + got / self.bytes_per_s
            until = self._free_at
        time.sleep(max(until - time.monotonic(), 0.0))
        return got
