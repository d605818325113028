"""vLLM's file-system tier (`FileSystemTierManager`) by itself: a file a block, O_DIRECT where it works."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from protocol import Memory, Side, pieces, serve
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager


class VllmFs(Side):
    """Jobs as the scheduler submits them, several under way; the memory is the primary tier's view."""

    def __init__(self, folder: Path, blocks: int, block_bytes: int, settings: dict[str, Any]) -> None:
        self.memory, self._folder = Memory(blocks, block_bytes), folder
        threads = int(settings["threads"])
        parallel = SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)
        config = SimpleNamespace(
            groups=[SimpleNamespace(tokens_per_block=16, layer_names=["layer"])], parallel=parallel,
            canonical_layout=False, replicated_layout=False,
            model=SimpleNamespace(name="benchmark", dtype="bfloat16"), cache=SimpleNamespace(tokens_per_hash=16),
        )  # fmt: skip
        spec: Any = SimpleNamespace(config=config, blocks_per_chunk=1, replicated_layout=False)
        self._tier = FileSystemTierManager(
            spec, self.memory.rows.data, "fs", str(folder / "fs"), n_read_threads=threads, n_write_threads=threads
        )
        self._jobs, self._side_by_side = 0, 2 * threads
        self.label = f"no checksum, no byte cap; {'O_DIRECT' if self._tier._use_o_direct else 'page cache'}"

    def key(self, seed: int, number: int) -> Any:
        return make_offload_key(b"%016d%016d" % (seed, number), 0)

    def _run(self, seed: int, order: list[int], *, load: bool) -> list[bool]:
        there: dict[int, list[int]] = {}
        for some in pieces(order, min(self._side_by_side, len(order))):
            self._jobs += 1
            there[self._jobs] = some
            job = TransferJob(
                self._jobs, [self.key(seed, number) for number in some], np.array(some), load, ReqContext(f"{self._jobs}")
            )
            (self._tier.submit_load if load else self._tier.submit_store)(job)
        ok: dict[int, bool] = {}
        while there:
            for result in self._tier.get_finished_jobs():
                some = there.pop(result.job_id)
                good = set(result.successful_keys or [])
                ok.update({number: result.success or self.key(seed, number) in good for number in some})
            time.sleep(0.0002)
        return [ok[number] for number in order]

    def put(self, seed: int) -> list[bool]:
        return self._run(seed, [*range(len(self.memory.rows))], load=False)

    def get(self, seed: int, order: list[int]) -> list[bool]:
        return self._run(seed, order, load=True)

    def drop(self, seed: int) -> None:
        for number in range(len(self.memory.rows)):
            Path(self._tier.file_mapper.get_file_name(self.key(seed, number))).unlink(missing_ok=True)

    def close(self) -> None:
        self._tier.shutdown()


if __name__ == "__main__":
    serve(VllmFs)
