# ruff: noqa: E402
"""vLLM: an eviction policy for its memory on the host that knows prefixes. docs/engines.md says how to choose it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvpager.connect.versions import VLLM, require

require(*VLLM)  # before anything is imported that other versions may lack

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, get_offload_group_idx
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

from kvpager.connect.leaves import Leaves

__all__ = ["LeafFirst", "before_of"]


class LeafFirst(CachePolicy):
    """Eviction from vLLM's memory on the host: never a block before the ones that continue it; among the others by last use.

    Parameters
    ----------
    cache_capacity : int
        Chunks.
    """

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._chunks: dict[OffloadKey, Any] = {}
        self._leaves = Leaves()

    def get(self, key: OffloadKey) -> Any:
        """Return a chunk; None if it is not there."""
        return self._chunks.get(key)

    def insert(self, key: OffloadKey, chunk: Any) -> None:
        """Take a chunk in."""
        self._chunks[key] = chunk
        self._leaves.add(key)
        if chunk.ref_cnt == 0:
            self._leaves.free(key)

    def remove(self, key: OffloadKey) -> None:
        """Drop a chunk."""
        del self._chunks[key]
        self._leaves.discard(key)

    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Mark chunks as used."""
        order = list(keys)
        self._learn(order, req_context)
        self._leaves.touch(order)

    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """Learn what the chunks that are about to come continue."""
        self._learn(list(keys), req_context)

    def evict(self, n: int, protected: set[OffloadKey]) -> list[tuple[OffloadKey, Any]] | None:
        """Drop `n` chunks, none of which `protected` ones continue."""
        keys = self._leaves.victims(n, protected)
        return None if keys is None else [(OffloadKey(key), self._chunks.pop(OffloadKey(key))) for key in keys]

    def clear(self) -> None:
        """Drop everything."""
        self._chunks.clear()
        self._leaves.clear()

    def mark_evictable(self, key: OffloadKey) -> None:
        """Let a chunk leave."""
        self._leaves.free(key)

    def mark_non_evictable(self, key: OffloadKey) -> None:
        """Do not let a chunk leave."""
        self._leaves.hold(key)

    def _learn(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        before = before_of(keys, context)
        for key in keys:
            if key in before:
                self._leaves.link(key, before[key])


@dataclass(slots=True)
class _Order:
    """What each key of a request continues; kept with the request, since a prompt has thousands."""

    positions: int
    before: dict[OffloadKey, OffloadKey]


def before_of(keys: Sequence[OffloadKey], context: ReqContext) -> dict[OffloadKey, OffloadKey]:
    """Return what each key continues: by the positions that vLLM noted for the request, else by the order of `keys`.

    Parameters
    ----------
    keys : sequence of OffloadKey
        Of the request, first to last.
    context : ReqContext
        The request.
    """
    positions: dict[OffloadKey, int] = getattr(context, "_offload_key_positions", {})
    order: _Order | None = context.get_state(_Order)
    if order is None or order.positions != len(positions) or not positions:
        groups: dict[int, list[OffloadKey]] = {}
        for key in sorted(positions, key=positions.__getitem__) or keys:
            groups.setdefault(get_offload_group_idx(key), []).append(key)
        before = {key: other for group in groups.values() for other, key in pairwise(group)}
        order = _Order(len(positions), before)
        context.set_state(order)
    return order.before
