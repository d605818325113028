"""The bare disk: threads move blocks between memory and one preallocated, written file, O_DIRECT."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from protocol import Memory, Side, serve


class Raw(Side):
    """Each block has its place. Two files take turns, so that a put never meets what was just read."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int, settings: dict[str, Any]) -> None:
        self.memory = Memory(blocks, block_bytes)
        self.memory.fill(0)
        self._bytes, self._threads = block_bytes, int(settings["threads"])
        self._pool = ThreadPoolExecutor(self._threads)
        path = folder / "raw"
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, 2 * blocks * block_bytes)
        os.close(fd)
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_DIRECT)
            self.label = f"O_DIRECT, {self._threads} threads"
        except OSError:
            self._fd = os.open(path, os.O_RDWR)
            self.label = f"no O_DIRECT here: through the page cache, {self._threads} threads"
        for seed in (0, 1):
            self.put(seed)

    def _move(self, call: Any, seed: int, order: list[int]) -> list[bool]:
        first = (seed % 2) * len(self.memory.rows)
        left = iter(order)

        def work() -> int:
            moved = 0
            for number in left:
                moved += call(self._fd, [self.memory.rows[number].data], (first + number) * self._bytes)
            return moved

        moved = sum(one.result() for one in [self._pool.submit(work) for _ in range(self._threads)])
        return [moved == len(order) * self._bytes] * len(order)

    def put(self, seed: int) -> list[bool]:
        return self._move(os.pwritev, seed, [*range(len(self.memory.rows))])

    def get(self, seed: int, order: list[int]) -> list[bool]:
        return self._move(os.preadv, seed, order)

    def drop(self, seed: int) -> None:
        pass

    def close(self) -> None:
        os.close(self._fd)


if __name__ == "__main__":
    serve(Raw)
