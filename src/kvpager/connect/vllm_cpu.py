# ruff: noqa: E402
"""vLLM on a CPU: its offloading refuses that platform, though only the copying between two memories is missing.

For tests, and for whoever runs vLLM on a CPU and wants its KV to outlive the process. The copies are made at once, by the
worker's thread.
"""

from __future__ import annotations

import time
from typing import Any

from kvpager.connect.versions import VLLM, require

VERSION = require(*VLLM)  # before anything is imported that other versions may lack

from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

__all__ = ["CPUTieringSpec", "CPUWorker"]


class CPUWorker(OffloadingWorker):
    """Copies blocks between the KV cache and the region that the tiers share.

    Parameters
    ----------
    caches : CanonicalKVCaches
        The KV cache, as int8 [blocks, bytes] a layer.
    region : SharedOffloadRegion
        Rows of chunks.
    blocks_per_chunk : int
        Blocks of the cache in a chunk.
    """

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion, blocks_per_chunk: int) -> None:
        self._region, self._per_chunk = region, blocks_per_chunk
        self._blocks = [cache.tensor.view(len(cache.tensor), -1) for cache in caches.tensors]
        self._chunks = [region.create_next_worker_view(one.shape[1] * blocks_per_chunk) for one in self._blocks]
        self._layers = [sorted({ref.tensor_idx for ref in refs}) for refs in caches.group_data_refs]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec) -> bool:
        """Copy from the cache."""
        return self._copy(job_id, src_spec, dst_spec, out=True)

    def submit_load(self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copy into the cache."""
        return self._copy(job_id, dst_spec, src_spec, out=False)

    def get_finished(self) -> list[TransferResult]:
        """Return what was copied since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Return: nothing is ever under way."""

    def shutdown(self) -> None:
        """Give the region back."""
        self._chunks.clear()
        self._region.cleanup()

    def _copy(self, job: int, cache: GPULoadStoreSpec, rows: Any, *, out: bool) -> bool:
        began, copied = time.perf_counter(), 0
        places = _places(cache, getattr(rows, "chunk_ids", rows.block_ids).tolist(), self._per_chunk)
        for group, block, row, part in places:
            for layer in self._layers[group]:
                here = self._blocks[layer][block]
                there = self._chunks[layer][row, part * len(here) : (part + 1) * len(here)]
                (there if out else here).copy_(here if out else there)
                copied += len(here)
        self._done.append(TransferResult(job, True, copied, time.perf_counter() - began))
        return True


class CPUTieringSpec(TieringOffloadingSpec):
    """vLLM's tiers, with a worker for the CPU."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the worker."""
        if self._worker is None:
            sizes = (
                {"num_chunks": self.num_chunks, "kv_bytes_per_chunk": self.kv_bytes_per_chunk}
                if VERSION > (0, 28)
                else {"num_blocks": self.num_blocks, "kv_bytes_per_block": self.kv_bytes_per_chunk}
            )
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id, rank=self.config.parallel.rank, cpu_page_size=self.cpu_page_size_per_worker,
                **sizes,
            )  # fmt: skip
            self._worker = CPUWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker


def _places(cache: GPULoadStoreSpec, rows: list[int], per_chunk: int) -> list[tuple[int, int, int, int]]:
    """Where each block goes: group, block of the cache, row, part of the row. A group's first chunk may begin within."""
    found, first_block, first_row = [], 0, 0
    for group, size in enumerate(cache.group_sizes):
        skipped = cache.block_indices[group] % per_chunk if size else 0
        for number in range(size):
            chunk, part = divmod(skipped + number, per_chunk)
            found.append((group, int(cache.block_ids[first_block + number]), rows[first_row + chunk], part))
        first_block += size
        first_row += -(-(skipped + size) // per_chunk)
    return found
