"""Engine-reserved bytes: what a named rule takes from the pool for one sequence, whole blocks and padding included.

- `paged`: every layer has a table of its own and takes whole blocks; blocks that left a window are freed. The least
  that any paged engine reserves.
- `vllm-hybrid`: vLLM's hybrid manager, which makes all layers' pages equal (a longer block, or padding) and deals them
  out in groups of equally many layers (layer-outermost layout; one state a layer, so prefix caching of states is off).
- `vllm-full`: vLLM with that manager off, as some connectors demand: windows are charged as full attention.

Read in vLLM 0.32.0's ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``, and equal to what that code computes
for every built-in model but DeepSeek V4 (``tests/models/sizes/test_vllm.py``); not measured on a GPU. A chunked layer is
charged as a sliding one, at most a block too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvpager.core import KVGeometry
from kvpager.errors import BadInput, ModelError, UnknownName
from kvpager.models.sizes.architectural import Tokens, layer_bytes, least, own_dtype
from kvpager.models.sizes.dtypes import KVDtype

__all__ = ["RULES", "engine_reserved_bytes", "rule_of"]


@dataclass(frozen=True, slots=True)
class _Request:
    """What a rule needs to know beside the geometry: the arguments of `engine_reserved_bytes`, defaults filled in."""

    tokens: Any
    block_size: int
    in_flight_tokens: int
    kv: KVDtype
    index: KVDtype

    def blocks(self, block_size: int, window: int | None) -> Any:
        """Blocks of `block_size` that one layer holds: all, or those a window can touch (it may begin inside a block)."""
        every = _ceil(self.tokens, block_size)
        if window is None:
            return every
        held = least(self.tokens, window - 1 + self.in_flight_tokens)
        some = _ceil(held, block_size) + 1
        return least(every, some)


def _paged(geometry: KVGeometry, request: _Request) -> Any:
    total: Any = geometry.state_bytes
    for layer, times in Counter(geometry.layers).items():
        token, entry = layer_bytes(layer, request.kv, request.index)
        total = total + times * token * request.block_size * request.blocks(request.block_size, layer.window_tokens)
        span = max(request.block_size, layer.entry_tokens)  # a block of entries covers at least one entry
        total = total + times * entry * _ceil(span, layer.entry_tokens) * _ceil(request.tokens, span)
    return total


def _refuse_entries(geometry: KVGeometry) -> None:
    if any(layer.compressed_dim for layer in geometry.layers):
        raise ModelError(
            f"model {geometry.name!r} keeps compressed entries, whose packing the rules of vLLM here do not describe: use 'paged'"
        )


def _vllm_full(geometry: KVGeometry, request: _Request) -> Any:
    _refuse_entries(geometry)
    if geometry.state_bytes:
        raise ModelError(f"model {geometry.name!r} keeps states, so vLLM cannot switch its hybrid manager off: use 'vllm-hybrid'")
    if not geometry.full_layers:
        return _paged(geometry, request)  # windows of one kind stay windows
    full = tuple(replace(layer, window_tokens=None) for layer in geometry.layers)
    return _paged(replace(geometry, layers=full), request)


def _vllm_hybrid(geometry: KVGeometry, request: _Request) -> Any:
    kinds = _kinds(geometry, request)
    _refuse_entries(geometry)
    states = [size for size, _, is_state in kinds if is_state]
    if not states and len({window for _, window, _ in kinds}) <= 1:
        return _paged(geometry, request)  # one type of attention: one group, every layer with its own page
    tokens = [size for size, _, is_state in kinds if not is_state]
    block_size = request.block_size
    if states and tokens:  # the attention block grows until its page holds a state
        block_size *= max(1, _ceil(max(states), block_size * max(tokens)))
    page = max([size * block_size for size in tokens] + states)
    counts = list(kinds.values())
    group = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    total: Any = 0
    for (size, window, is_state), times in kinds.items():
        own = size * block_size
        stretched = block_size * (page // own) if not is_state and page % own == 0 else block_size
        held = 1 if is_state else request.blocks(stretched, window)
        total = total + _ceil(times, group) * group * page * held
    return total


def _kinds(geometry: KVGeometry, request: _Request) -> Counter[tuple[int, int | None, bool]]:
    """Count vLLM's layers by (bytes a token or of a state, window, is a state); an indexer is a layer of its own."""
    kinds: Counter[tuple[int, int | None, bool]] = Counter()
    for layer in geometry.layers:
        token, entry = layer_bytes(layer, request.kv, request.index)
        kinds[token, layer.window_tokens, False] += bool(token)
        kinds[entry, None, False] += bool(entry)
        kinds[layer.state_bytes, None, True] += bool(layer.state_bytes)
    return +kinds


RULES: dict[str, Callable[[KVGeometry, _Request], Any]] = {
    "paged": _paged,
    "vllm-full": _vllm_full,
    "vllm-hybrid": _vllm_hybrid,
}


def rule_of(geometry: KVGeometry) -> str:
    """Name of the rule that describes a model by default: `vllm-hybrid`, or `paged` where vLLM packs in a way not described."""
    return "paged" if any(layer.compressed_dim for layer in geometry.layers) else "vllm-hybrid"


def engine_reserved_bytes(
    geometry: KVGeometry,
    context_tokens: Tokens,
    *,
    rule: str | None = None,
    block_size: int = 16,
    in_flight_tokens: int = 1,
    kv: KVDtype | None = None,
    index: KVDtype | None = None,
) -> Tokens:
    """Bytes that an engine reserves for one sequence.

    Parameters
    ----------
    geometry : KVGeometry
        Of the model, or of one rank (`rank_geometries`).
    context_tokens : int or int64 array
        Length of the sequence.
    rule : str, optional
        One of `RULES`; default `rule_of` the model.
    block_size : int
        Tokens of the engine's block.
    in_flight_tokens : int
        Tokens scheduled at once: 1 in decode, the chunk in a chunked prefill. A window holds them besides itself.
    kv, index : KVDtype, optional
        Storage of KV and of index keys; default: the model's own dtype, index as KV.

    Raises
    ------
    UnknownName
        For an unknown rule.
    ModelError
        If the rule does not describe the model.
    BadInput
        For a block of no tokens, or none in flight.
    """
    rule = rule or rule_of(geometry)
    if rule not in RULES:
        raise UnknownName(f"unknown rule {rule!r} for engine-reserved bytes: use one of {', '.join(RULES)}")
    if block_size < 1 or in_flight_tokens < 1:
        raise BadInput(f"block_size = {block_size} and in_flight_tokens = {in_flight_tokens} must both be at least 1 token")
    kv = kv or own_dtype(geometry)
    request = _Request(context_tokens, block_size, in_flight_tokens, kv, index or kv)
    reserved: Tokens = RULES[rule](geometry, request)
    return reserved


def _ceil(count: Any, size: int) -> Any:
    return -(-count // size)
