"""LMCache's local disk backend (`LocalDiskBackend`) by itself, with its O_DIRECT option: a file a block."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
from protocol import Memory, Side, serve


class LmcacheDisk(Side):
    """Blocks are objects of its own allocator, twice as many as there are rows: one for puts, one that gets fill."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int, settings: dict[str, Any]) -> None:
        (folder / "disk").mkdir(exist_ok=True)
        self._folder = folder / "disk"
        config = LMCacheEngineConfig.from_defaults(
            local_cpu=False, local_disk=str(self._folder), max_local_disk_size=64.0,
            extra_config={"use_odirect": True, "disk_io_threads": int(settings["threads"])},
        )  # fmt: skip
        allocator = MixedMemoryAllocator(2 * blocks * block_bytes + (64 << 20))
        self._cpu = LocalCPUBackend(config, dst_device="cpu", memory_allocator=allocator)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._disk = LocalDiskBackend(config, self._loop, self._cpu, dst_device="cpu")
        self._shape = torch.Size([1, 1, block_bytes // 2, 1])
        self._objects = [self._new() for _ in range(blocks)]
        self.memory = Memory(blocks, block_bytes)
        self._views = [torch.frombuffer(one.byte_array, dtype=torch.uint8).numpy() for one in self._objects]
        self.label = "no checksum; O_DIRECT" if self._disk.use_odirect else "no checksum; page cache"

    def _new(self) -> Any:
        return self._cpu.allocate(self._shape, torch.bfloat16, MemoryFormat.KV_T2D)

    def key(self, seed: int, number: int) -> CacheEngineKey:
        return CacheEngineKey("benchmark", 1, 0, 1_000_000 * (seed + 1) + number, torch.bfloat16)

    def prepare(self) -> None:
        """Bring the rows into its own objects; not part of a put."""
        for view, row in zip(self._views, self.memory.rows, strict=True):
            view[:] = row

    def put(self, seed: int) -> list[bool]:
        keys = [self.key(seed, number) for number in range(len(self._objects))]
        done, left = threading.Event(), [len(keys)]

        def one(key: CacheEngineKey) -> None:
            left[0] -= 1
            if not left[0]:
                done.set()

        self._disk.batched_submit_put_task(keys, self._objects, on_complete_callback=one)
        done.wait(120)
        return [self._disk.contains(key) for key in keys]

    def get(self, seed: int, order: list[int]) -> list[bool]:
        self._got = list(zip(order, self._disk.batched_get_blocking([self.key(seed, number) for number in order]), strict=True))
        return [found is not None for _, found in self._got]

    def finish(self) -> None:
        """Bring what was got into the rows; not part of a get."""
        for number, found in self._got:
            if found is not None:
                self.memory.rows[number] = torch.frombuffer(found.byte_array, dtype=torch.uint8).numpy()
                found.ref_count_down()

    def drop(self, seed: int) -> None:
        for number in range(len(self._objects)):
            self._disk.remove(self.key(seed, number))

    def close(self) -> None:
        self._disk.close()


if __name__ == "__main__":
    serve(LmcacheDisk)
