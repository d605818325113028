"""SGLang's `HiCacheFile` by itself: a file a block, through the page cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from protocol import Memory, Side, serve
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory


class SglangFile(Side):
    """One block after another, as its `batch_set` and `batch_get` do."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int, settings: dict[str, Any]) -> None:
        self.memory, self._folder = Memory(blocks, block_bytes), folder / "file"
        config = HiCacheStorageConfig(
            0, 1, 0, 1, 0, 1, False, False, True, "benchmark", extra_config={"file_storage_path": str(self._folder)}
        )
        self._storage = StorageBackendFactory.create_backend("file", config, None)
        self._rows = [torch.from_numpy(row) for row in self.memory.rows]
        self.label = "no checksum; page cache"

    def put(self, seed: int) -> list[bool]:
        return [bool(self._storage.set(f"{seed}-{number}", row)) for number, row in enumerate(self._rows)]

    def get(self, seed: int, order: list[int]) -> list[bool]:
        return [self._storage.get(f"{seed}-{number}", self._rows[number]) is not None for number in order]

    def drop(self, seed: int) -> None:
        for file in self._folder.glob(f"{seed}-*"):
            file.unlink()

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(SglangFile)
