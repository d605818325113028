"""kvpager's block store, checksums on, in the process that owns it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from protocol import Memory, Side, serve

from kvpager import store


class Kvpager(Side):
    """One batch for a whole put or get; blocks of one seed are a chain, each behind the one before it."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int, settings: dict[str, Any]) -> None:
        self.memory = Memory(blocks, block_bytes)
        self._lend = bool(settings.get("lend", True))
        self.label = f"checksums and a byte cap, memory {'lent' if self._lend else 'copied'}"
        self.store = store.open(folder / "store", settings["capacity"], deadline_s=600)

    def keys(self, seed: int) -> list[bytes]:
        return [b"%d-%d" % (seed, number) for number in range(len(self.memory.rows))]

    def put(self, seed: int) -> list[bool]:
        keys = self.keys(seed)
        parents: list[bytes | None] = [None, *keys[:-1]]
        return [bool(ok) for ok in self.store.put_many(keys, list(self.memory.rows), parents, lend=self._lend)]

    def get(self, seed: int, order: list[int]) -> list[bool]:
        keys = self.keys(seed)
        rows = [self.memory.rows[number] for number in order]
        ok = self.store.get_many([keys[number] for number in order], rows, lend=self._lend)
        return [bool(one) for one in ok]

    def drop(self, seed: int) -> None:
        with ThreadPoolExecutor(32) as pool:  # a deletion waits for the disk
            list(pool.map(self.store.delete, self.keys(seed)))

    def close(self) -> None:
        self.store.close()


if __name__ == "__main__":
    serve(Kvpager)
