# ruff: noqa: E402
"""vLLM: the block store as a secondary tier of its KV offloading.

All of this is called by vLLM's scheduler and returns at once. What is asked of the store is asked by a thread or by a ticket,
each with a deadline, and looked at again in `KVPagerTier.get_finished_jobs`. docs/engines.md has the launch line.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.connect.versions import VLLM, require

VERSION = require(*VLLM)  # before anything is imported that other versions may lack

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from kvpager import store
from kvpager.connect.counts import COUNTERS, GAUGES, STORE_GAUGES
from kvpager.connect.offers import Offers
from kvpager.connect.vllm_names import namespace_of, one_prefix
from kvpager.connect.vllm_policy import before_of
from kvpager.errors import BadInput, KVPagerError
from kvpager.store.metrics import Endpoint
from kvpager.store.sizes import MOST_BLOCK_BYTES

__all__ = ["VERSION", "KVPagerConnector", "KVPagerTier"]

logger = init_logger(f"vllm.{__name__}")

_PREFIX = "vllm:kvpager_"
Flags = NDArray[np.bool_]


class KVPagerConnector(OffloadingConnector):
    """vLLM's offloading connector, which tells the tier below it what the model is; nothing else is changed.

    Parameters
    ----------
    vllm_config : VllmConfig
        Of the engine.
    role : KVConnectorRole
        Scheduler or worker.
    kv_cache_config : KVCacheConfig
        Of the KV cache.
    """

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        with set_current_vllm_config(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)


@dataclass(slots=True)
class _Transfer:
    """A job of vLLM's that is under way."""

    job: TransferJob
    keys: list[OffloadKey]
    store: store.BlockStore
    began: float
    ok: Flags
    there: Future[Flags] | None = None
    """Of a store job: which blocks need not be written."""
    ticket: int | None = None
    """Of the blocks `todo`."""
    todo: list[int] = field(default_factory=list)


class KVPagerTier(SecondaryTierManager):
    """The block store as a secondary tier of vLLM.

    Parameters
    ----------
    offloading_spec : OffloadingSpec
        vLLM's settings.
    primary_kv_view : memoryview
        int8 [chunks, bytes], vLLM's memory on the host.
    tier_type : str
        By what name it was asked for.
    backpressure_detector : object, optional
        vLLM's.
    path : str
        Directory of the store.
    capacity : int or str
        Bytes on disk at most: see `kvpager.store.open`.
    policy : str
        Which blocks leave the disk first.
    deadline_s : float
        Seconds after which a job has failed.
    lookup_deadline_s : float
        Seconds after which a block counts as missing.
    weights : str
        What tells the model's weights from others, if that cannot be found out: a revision.
    lora : str
        The same for LoRA adapters, together.
    tenant : str
        Salt of everything this engine stores.
    tenants : dict of str to int or str, optional
        Bytes on disk for requests that name one of these in ``kv_transfer_params={"kvpager_tenant": …}``.
    refresh_s : float
        How often the store is asked for its counts.
    prefill_tokens_per_s : float, optional
        How fast this engine computes a prompt; then the gate is on.
    gate : bool, optional
        Whether only what is expected to come sooner than it is computed is loaded: if not said, where the speed is told.
    lend : bool
        Whether the disk has vLLM's memory itself, without a copy: a job that is late is then over when the disk lets go.
    metrics_port : int, optional
        Where the store's and the gate's metrics are served, to this machine; 0: any port.

    Raises
    ------
    BadInput
        If the settings cannot be used, or would let one model serve the blocks of another.
    StoreError
        If the store cannot be opened.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self, offloading_spec: OffloadingSpec, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, *,
        path: str, capacity: int | str = 0, policy: str = "lru", deadline_s: float = 10.0, lookup_deadline_s: float = 1.0,
        weights: str = "", lora: str = "", tenant: str = "", tenants: Mapping[str, int | str] | None = None,
        refresh_s: float = 5.0, prefill_tokens_per_s: float | None = None, gate: bool | None = None,
        lend: bool = False, metrics_port: int | None = None,
    ) -> None:  # fmt: skip
        detector = () if backpressure_detector is None else (backpressure_detector,)  # vLLM 0.28 has none
        super().__init__(offloading_spec, primary_kv_view, tier_type, *detector)
        self._rows: NDArray[np.uint8] = np.asarray(primary_kv_view).view(np.uint8)
        self._row_bytes = self._rows.shape[1]
        if self._row_bytes > MOST_BLOCK_BYTES:
            raise BadInput(
                f"a chunk of vLLM's has {self._row_bytes:,} bytes, {MOST_BLOCK_BYTES:,} fit into a block of the store: set "
                f"a smaller block_size in kv_connector_extra_config"
            )
        names = namespace_of(offloading_spec, self._row_bytes, weights, lora)
        self._offers: Offers | None = None
        if gate or (gate is None and prefill_tokens_per_s is not None):
            if prefill_tokens_per_s is None or not one_prefix(offloading_spec):
                raise BadInput(
                    "the gate needs prefill_tokens_per_s, and layers that keep the whole context: give it, or set gate to false"
                )
            self._offers = Offers(names.block_tokens, self._row_bytes, prefill_tokens_per_s, deadline_s)
        salts = {name: f"{tenant}\0{name}".encode() for name in tenants or {}}
        self._deadline_s, self._lookup_deadline_s, self._refresh_s, self._lend = deadline_s, lookup_deadline_s, refresh_s, lend
        self._store = store.open(
            path, capacity, namespace=names, tenant=tenant.encode(), policy=policy,
            quotas={salts[name]: size for name, size in (tenants or {}).items()}, deadline_s=deadline_s,
        )  # fmt: skip
        self._tenants = {name: self._store.of_tenant(salt) for name, salt in salts.items()}
        self._asker = ThreadPoolExecutor(1, "kvpager-ask")
        self._known: dict[str, dict[OffloadKey, bool | None]] = {}  # by request; None: not yet
        self._to_ask: dict[str, tuple[store.BlockStore, list[OffloadKey]]] = {}
        self._asked: list[tuple[Future[Flags], str, list[OffloadKey], float]] = []
        self._transfers: dict[int, _Transfer] = {}
        self._results: list[JobResult] = []
        self._counts: Counter[str] = Counter()
        self._document: Future[dict[str, Any]] | None = None
        self._looked_at = 0.0
        self._endpoint = None if metrics_port is None else self._serve(metrics_port)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Take a request in; it wants nothing special."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget what was answered to a request."""
        self._known.pop(req_context.req_id, None)
        self._to_ask.pop(req_context.req_id, None)
        if self._offers is not None:
            self._offers.forget(req_context.req_id)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return what is known of a block; what is not is asked at the end of this step of the scheduler."""
        known = self._known.setdefault(req_context.req_id, {})
        if key not in known:
            known[key] = None
            self._to_ask.setdefault(req_context.req_id, (self._store_of(req_context), []))[1].append(key)
        there = known[key]
        return LookupResult.RETRY if there is None else LookupResult.HIT if there else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Ask about all blocks that were looked up in this step, in one question a request."""
        deadline = time.monotonic() + self._lookup_deadline_s
        for request, (place, keys) in self._to_ask.items():
            self._counts["blocks_asked"] += len(keys)
            self._asked.append((self._asker.submit(_which, place, keys, deadline), request, keys, deadline))
        self._to_ask = {}

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Begin to write chunks that are not there yet."""
        transfer = self._begin(job_metadata)
        transfer.there = self._asker.submit(_which, transfer.store, transfer.keys, transfer.began + self._deadline_s)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Begin to read chunks."""
        transfer = self._begin(job_metadata)
        transfer.todo = list(range(len(transfer.keys)))
        rows = [self._rows[row] for row in _rows_of(job_metadata)]
        self._start(transfer, lambda: transfer.store.submit_get(transfer.keys, rows, lend=self._lend))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs that are answered, or whose deadline has passed."""
        self._take_answers()
        results, self._results = self._results, []
        for number, transfer in list(self._transfers.items()):
            if self._advance(transfer):
                del self._transfers[number]
                results.append(self._result(transfer))
        return results

    def drain_jobs(self) -> None:
        """Wait for all jobs, which have deadlines."""
        while self._transfers:
            self._results = list(self.get_finished_jobs())  # with those that were there
            time.sleep(0.001)

    def shutdown(self) -> None:
        """Give the memory back, and the store."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None
        self._asker.shutdown(wait=False, cancel_futures=True)
        for transfer in self._transfers.values():
            if transfer.ticket is not None:
                transfer.store.give_up(transfer.ticket)
        for place in (self._store, *self._tenants.values()):
            place.settle(self._deadline_s)
        self._transfers.clear()
        self._rows = np.zeros((0, self._row_bytes), np.uint8)
        self._store.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return what `get_stats` will tell."""
        counters = {_PREFIX + name: OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}
        gauges = {_PREFIX + name: OffloadingGaugeMetadata(documentation=text) for name, text in GAUGES.items()}
        return {**counters, **gauges}

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return the counts since the last call, and every few seconds what the store says of itself."""
        stats = OffloadingConnectorStats()
        for name, count in self._counts.items():
            stats.increase_counter(_PREFIX + name, count)
        self._counts.clear()
        rose, gauges = self._offers.news() if self._offers is not None else ({}, {})
        for name, more in rose.items():
            stats.increase_counter(_PREFIX + name, more)
        for name, seconds in gauges.items():
            stats.set_gauge(_PREFIX + name, seconds)
        if self._document is not None and self._document.done():
            said = {} if self._document.exception() else self._document.result()
            for name in STORE_GAUGES:
                if (value := said.get(name.removeprefix("store_"))) is not None:
                    stats.set_gauge(_PREFIX + name, value)
            self._document = None
        elif self._document is None and time.monotonic() > self._looked_at + self._refresh_s:
            self._looked_at = time.monotonic()
            self._document = self._asker.submit(self._store.stats, self._lookup_deadline_s)
        return None if stats.is_empty() else stats

    def _serve(self, port: int) -> Endpoint:
        try:
            return Endpoint(self._store, port, gate=self._offers.gate if self._offers is not None else None)
        except BadInput:
            self._store.close()
            raise

    def _store_of(self, context: ReqContext) -> store.BlockStore:
        name = (context.kv_transfer_params or {}).get("kvpager_tenant")
        return self._tenants.get(name, self._store) if isinstance(name, str) else self._store

    def _begin(self, job: TransferJob) -> _Transfer:
        keys = list(job.keys)
        transfer = _Transfer(job, keys, self._store_of(job.req_context), time.monotonic(), np.zeros(len(keys), np.bool_))
        self._transfers[job.job_id] = transfer
        return transfer

    def _start(self, transfer: _Transfer, submit: Callable[[], int]) -> None:
        try:
            transfer.ticket = submit()
        except KVPagerError as error:
            logger.warning("kvpager: job %d failed: %s", transfer.job.job_id, error)

    def _advance(self, transfer: _Transfer) -> bool:
        """Look at a job, and begin its next part; return whether it is over."""
        late = time.monotonic() > transfer.began + self._deadline_s
        if transfer.there is not None:
            if not transfer.there.done():
                return late
            self._write_missing(transfer, transfer.there)
            transfer.there = None
        if transfer.ticket is None:
            return transfer.store.settle(0.0)
        try:
            answers = transfer.store.wait([transfer.ticket], 0.0)
        except KVPagerError as error:
            logger.warning("kvpager: job %d failed: %s", transfer.job.job_id, error)
            transfer.ticket = None
            return transfer.store.settle(0.0)
        if not answers and not late:
            return False
        ok = answers[0][1] if answers else transfer.store.give_up(transfer.ticket)
        transfer.ok[transfer.todo], transfer.ticket = ok, None
        return bool(answers) or transfer.store.settle(0.0)  # what is answered, the disk has let go

    def _write_missing(self, transfer: _Transfer, there: Future[Flags]) -> None:
        """Begin to write what is not there."""
        if there.exception() is None:
            transfer.ok |= there.result()
        self._counts["blocks_already_stored"] += int(transfer.ok.sum())
        transfer.todo = np.flatnonzero(~transfer.ok).tolist()
        rows, before = _rows_of(transfer.job), before_of(transfer.keys, transfer.job.req_context)
        if transfer.todo:
            keys = [transfer.keys[number] for number in transfer.todo]
            memories = [self._rows[rows[number]] for number in transfer.todo]
            parents = [before.get(key) for key in keys]
            self._start(transfer, lambda: transfer.store.submit_put(keys, memories, parents, lend=self._lend))

    def _result(self, transfer: _Transfer) -> JobResult:
        """Count a job that is over, and say how it went."""
        ok, job = transfer.ok, transfer.job
        good = int(ok[transfer.todo].sum())
        done, not_done = ("blocks_loaded", "blocks_not_loaded") if job.is_promotion else ("blocks_stored", "blocks_not_stored")
        self._counts[done] += good
        self._counts[not_done] += int((~ok).sum())
        seconds = time.monotonic() - transfer.began
        if job.is_promotion and self._offers is not None:
            self._offers.fetched(job.req_context.req_id, len(ok), seconds, ok=bool(ok.all()))
        if not ok.all():
            known = self._known.get(job.req_context.req_id, {})
            if job.is_promotion:  # so that the request does not ask for them again, and again
                known.update({key: False for key, loaded in zip(transfer.keys, ok, strict=True) if not loaded})
            logger.warning(
                "kvpager: %d of %d blocks were not %s (job %d)", int((~ok).sum()), len(ok),
                "read and are computed again" if job.is_promotion else "written", job.job_id,
            )  # fmt: skip
        return JobResult(
            job_id=job.job_id, success=bool(ok.all()),
            successful_keys=tuple(key for key, loaded in zip(transfer.keys, ok, strict=True) if loaded),
            transfer_time=seconds,
        )  # fmt: skip

    def _take_answers(self) -> None:
        """Note which of the blocks that were asked about are there."""
        waiting = []
        for question in self._asked:
            answer, request, keys, deadline = question
            late = time.monotonic() > deadline
            if not answer.done() and not late:
                waiting.append(question)
                continue
            answered = answer.done() and answer.exception() is None
            there = answer.result().tolist() if answered else [False] * len(keys)
            self._counts["blocks_found"] += sum(there)
            self._counts["blocks_missing" if answered else "blocks_late"] += len(keys) - sum(there)
            if (known := self._known.get(request)) is not None:
                if self._offers is not None:
                    there = self._offers.offer(request, there)
                known.update(zip(keys, there, strict=True))
        self._asked = waiting


def _rows_of(job: TransferJob) -> list[int]:
    """Rows of the primary tier; vLLM 0.28 calls them blocks."""
    rows: list[int] = (job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids).tolist()
    return rows


def _which(place: store.BlockStore, keys: Collection[bytes], deadline: float) -> Flags:
    """Which blocks are there; for another thread than the scheduler's."""
    return place.contains_many(list(keys), max(deadline - time.monotonic(), 0.0))
