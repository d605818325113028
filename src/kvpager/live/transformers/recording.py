"""Decoding one sequence while watching its attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, DynamicLayer, get_layer_types_and_kwargs

from kvpager.errors import ModelError
from kvpager.live.attention import range_plan
from kvpager.live.transformers.attending import ATTENTION, Watch, half
from kvpager.live.transformers.loading import LoadedModel
from kvpager.traces.decoder import Observation, Progress
from kvpager.traces.provenance import versions_of

__all__ = ["GrowingLayer", "RecordingDecoder", "new_cache"]

_PREFILL_TOKENS = 512
_PREFILL_QUERIES = 32


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Full-attention K and V in a buffer that doubles, so that a step does not copy the whole cache."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:  # noqa: D102 - docstring inherited
        super().lazy_initialization(key_states, value_states)
        self._room = (key_states[..., :0, :], value_states[..., :0, :])
        self._tokens = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:  # noqa: D102
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        first, self._tokens = self._tokens, self._tokens + key_states.shape[-2]
        missing = self._tokens - self._room[0].shape[-2]
        if missing > 0:
            more = max(missing, first, 256)
            self._room = (functional.pad(self._room[0], (0, 0, 0, more)), functional.pad(self._room[1], (0, 0, 0, more)))
        self.keys, self.values = (room[..., : self._tokens, :] for room in self._room)
        self.keys[..., first:, :] = key_states
        self.values[..., first:, :] = value_states
        return self.keys, self.values


def new_cache(config: Any) -> Cache:
    """Return an empty cache for one sequence: `GrowingLayer` where attention is full, transformers' own elsewhere."""
    kinds, options = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    layers: list[Any] = []
    for kind, option in zip(kinds, options, strict=True):
        make: Any = GrowingLayer if kind == "full_attention" else DYNAMIC_LAYER_TYPE_MAPPING[kind]
        layers.append(make(**option))
    return Cache(layers=layers)


class RecordingDecoder:
    """Decodes one sequence in float32 and shows what each step read. Fulfils `kvpager.traces.decoder.Decoder`.

    The prefill runs in slices by SDPA; its last 32 queries are watched in the last slice. Steps run the watched
    function in full-attention layers and plain SDPA in sliding ones.

    Parameters
    ----------
    loaded : LoadedModel
        Switched to the attention implementation `ATTENTION`, which serves unwatched calls too.
    block_size : int
        Tokens of a block.

    Raises
    ------
    ModelError
        If no layer has full attention.
    """

    def __init__(self, loaded: LoadedModel, *, block_size: int = 16) -> None:
        if not loaded.geometry.full_layers:
            raise ModelError(
                f"model {loaded.name!r} has sliding-window layers only: there is no growing cache to record; choose another model"
            )
        shapes = {loaded.geometry.layers[layer] for layer in loaded.geometry.full_layers}
        if len(shapes) > 1 or any(shape.latent or shape.index_dim or shape.shares_layer is not None for shape in shapes):
            raise ModelError(
                f"model {loaded.name!r}: its full-attention layers share KV, differ in shape, or keep no plain K and V: "
                "recording knows one shape of K and V; choose another model"
            )
        self.model, self.geometry, self.weights_sha256 = loaded.name, loaded.geometry, loaded.weights_sha256
        self.block_size = block_size
        self.versions: Mapping[str, str] = versions_of(["torch", "transformers"])
        self._network = loaded.model
        self._network.set_attn_implementation(ATTENTION)
        self._start()

    def _start(self) -> None:
        self.cache = new_cache(self._network.config)
        self._watch = Watch(self.geometry, self.block_size)
        self._tokens = 0

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], progress: Progress) -> tuple[NDArray[np.float16], int]:  # noqa: D102 - of the protocol
        self._start()
        total, chosen = len(tokens), 0
        edges = [*range(0, max(1, total - _PREFILL_QUERIES), _PREFILL_TOKENS), total]
        for first, after in pairwise(edges):
            progress("prefill", first, total)
            self._watch.tail = min(_PREFILL_QUERIES, total) if after == total else 0
            chosen = self._forward(tokens[first:after])
        progress("prefill", total, total)
        mass = torch.stack(self._watch.blocks).permute(2, 0, 1, 3)
        self._watch.blocks.clear()
        self._watch.tail = 0
        return half(mass), chosen

    @torch.inference_mode()
    def step(self, token: int) -> tuple[Observation, int]:  # noqa: D102 - of the protocol
        watch = self._watch
        watch.plan = range_plan(self._tokens + 1, self.block_size)
        chosen = self._forward([token])
        seen = watch.observe(self._tokens)
        watch.blocks.clear()
        watch.ragged.clear()
        return seen, chosen

    def _forward(self, tokens: Sequence[int]) -> int:
        ids = torch.tensor([list(tokens)])
        out = self._network(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1, kvpager_watch=self._watch)
        self._tokens += len(tokens)
        return int(out.logits[0, -1].argmax())
