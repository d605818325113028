"""A cache for ``model.generate`` whose full-attention layers live in tiers; other layers are transformers' own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin, get_layer_types_and_kwargs

from kvpager.errors import BadInput, InvariantError, ModelError, UnitsLost
from kvpager.live.engine import Batch
from kvpager.live.reshape import crop, end, fork, rearrange
from kvpager.live.store import TieredStore
from kvpager.live.transformers.attending import ATTENTION, TAG

__all__ = ["TieredCache", "TieredLayer"]


class TieredLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """One full-attention layer: hands out tagged placeholders of the right shape, and attends when it is asked to.

    Parameters
    ----------
    cache : TieredCache
        Whose layer it is.
    number : int
        Among the tiered layers.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, cache: TieredCache, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache, self.number = cache, number
        self._new: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:  # noqa: D102 - transformers' contract
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Take new keys and values; return placeholders without storage, [rows, kv_heads, all tokens, dim]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._new = (key_states, value_states)
        tokens = self._cache.tokens + key_states.shape[-2]
        keys, values = (  # on no device: whatever but kvpager's attention function looks at them fails
            new.new_empty((*new.shape[:2], tokens, new.shape[-1]), device="meta") for new in (key_states, value_states)
        )
        setattr(keys, TAG, self)
        return keys, values

    def attend(self, query: Tensor, mask: Tensor | None, scaling: float, softcap: float) -> Tensor:
        """Return the attention output of the tokens that `update` took, [rows, q_heads, tokens, v_dim]."""
        if self._new is None:
            raise InvariantError(f"tiered layer {self.number} is asked to attend, but got no keys: update it first")
        (key, value), self._new = self._new, None
        return self._cache.attend(self.number, query, key, value, mask, scaling, softcap)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: D102
        return self._cache.tokens + query_length, 0

    def get_seq_length(self) -> int:  # noqa: D102
        return self._cache.tokens

    def get_max_length(self) -> int:  # noqa: D102
        return -1


class TieredCache(Cache):
    """KV of a batch in tiers, for ``model(...)`` and ``model.generate(..., cache=...)``.

    Nothing is patched: the model's attention implementation must be ``"kvpager"``, which this sets.

    Parameters
    ----------
    model : PreTrainedModel
        The model it serves.
    store : TieredStore
        Where the blocks are; several caches may share one.
    selective : bool
        Whether a step of one token reads what the store's selector chooses; otherwise attention is exact.
    name : str
        For errors.

    Attributes
    ----------
    tokens : int
        Tokens seen in complete forward calls, padding included.

    Raises
    ------
    ModelError
        If the model does not fit the store.
    BadInput
        If `selective` is asked of a store without a selector.
    """

    def __init__(self, model: Any, store: TieredStore, *, selective: bool = False, name: str = "") -> None:
        if selective and store.selector is None:
            raise BadInput("a selective cache needs a selector: open the store with one, e.g. outlier_mean")
        kinds, options = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
        full = tuple(number for number, kind in enumerate(kinds) if kind == "full_attention")
        if full != store.layer_numbers:
            raise ModelError(
                f"the model has full attention in layers {list(full)}, the store was opened for {list(store.layer_numbers)}: "
                "open a store for this model"
            )
        strange = set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}
        if strange:
            raise ModelError(
                f"the model has layers of kind {sorted(strange)}, which the tiered cache cannot roll back: use another cache"
            )
        model.set_attn_implementation(ATTENTION)
        numbers = iter(range(len(full)))
        layers = [
            TieredLayer(self, next(numbers)) if kind == "full_attention" else DYNAMIC_LAYER_TYPE_MAPPING[kind](**option)
            for kind, option in zip(kinds, options, strict=True)
        ]
        super().__init__(layers=layers)
        self.model = model
        self.store, self.batch = store, Batch(store, store.selector if selective else None, name)
        self.tokens = 0
        self._others = [layer for layer in layers if not isinstance(layer, TieredLayer)]
        self._before: list[dict[str, Any]] = []
        self._at = len(layers)
        self._new: list[int] = []

    # ── a forward call ───────────────────────────────────────────────────────────────────────────

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take a layer's new keys and values; at a call's first layer, undo a call that was broken off.

        Raises
        ------
        ModelError
            If the model is compiled, in training, or set to another attention implementation.
        """
        if layer_idx <= self._at:
            self.rollback()
            self._refuse(key_states)
            self._before = [dict(vars(layer)) for layer in self._others]
        self._at = layer_idx
        keys, values = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == len(self.layers) - 1 and not isinstance(self.layers[layer_idx], TieredLayer):
            self._finish(key_states.shape[-2])
        return keys, values

    def _refuse(self, keys: Tensor) -> None:
        """Refuse what would go wrong, in silence or in other words."""
        if torch.compiler.is_compiling() or get_eval_frame_callback():  # the latter: code that Dynamo gave up tracing
            raise ModelError("the tiered cache reads tiers between a layer's operations: run the model without torch.compile")
        chosen = self.model.config.get_text_config(decoder=True)._attn_implementation
        if chosen != ATTENTION:
            raise ModelError(
                f"the model's attention implementation is {chosen!r} now, which knows no tiers: "
                f"call model.set_attn_implementation({ATTENTION!r}) again"
            )
        if self.model.training or keys.requires_grad:
            raise ModelError("the tiered cache computes no gradients: call model.eval(), and run it under torch.inference_mode()")
        if str(keys.device) != self.store.device:
            raise ModelError(
                f"keys of the model are on {keys.device}, and the store was opened for {self.store.device}: open it for the one "
                "device that the whole model is on"
            )

    def _finish(self, queries: int) -> None:
        self.batch.finish()
        self.tokens += queries

    def attend(
        self, number: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, softcap: float
    ) -> Tensor:
        """Attend in tiered layer `number`; after the last one, the call is complete."""
        try:
            if number == 0:
                self._new = self._real_tokens(mask, len(query), query.shape[2])
            output = self.batch.attend(number, query, key, value, self._new, scaling=scaling, softcap=softcap, finish=False)
        except BaseException:
            self.rollback()
            raise
        if self.store.layer_numbers[number] == len(self.layers) - 1:
            self._finish(query.shape[2])
        return output.to(query.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of complete calls, padding included: the same for all layers."""
        return self.tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return keys' length and offset. Masks are made before a call's first layer: a call that was broken off is undone."""
        self.rollback()
        length, offset = super().get_mask_sizes(query_length, layer_idx)
        return length, offset

    def rollback(self) -> None:
        """Return to the last complete forward call, if one was broken off."""
        self.batch.rollback()
        for layer, before in zip(self._others, self._before, strict=False):
            if layer.get_seq_length() > self.tokens:
                vars(layer).clear()
                vars(layer).update(before)
        self._before = []
        self._at = len(self.layers)

    def _real_tokens(self, mask: Tensor | None, rows: int, queries: int) -> list[int]:
        """How many of a call's tokens are real, by row: those after the padding on the left.

        Raises
        ------
        BadInput
            For a mask that is more than causal attention with padding on the left.
        """
        known = [row.tokens for row in self.batch.rows] or [0] * rows
        if mask is None:
            for row, tokens in enumerate(known):
                if tokens != self.tokens:
                    raise BadInput(
                        f"row {row} begins with {self.tokens - tokens} tokens of padding: pass its attention mask at each call"
                    )
            return [queries] * rows
        columns = torch.arange(self.tokens + queries, device=mask.device)
        position = self.tokens + torch.arange(queries, device=mask.device)
        real = mask[:, 0, -1, self.tokens :].sum(-1).tolist() if mask.dtype == torch.bool else [-1] * rows
        if len(mask) != rows:
            real = real * rows
        for row, count in enumerate(real):
            start = self.tokens + queries - known[row] - count
            here = mask[row if len(mask) == rows else 0, 0]
            seen = (columns >= start) & (columns <= position[:, None])
            if count < 0 or not torch.equal(here, seen):
                raise BadInput(
                    f"row {row}: its attention mask ({mask.dtype}) is not boolean and causal with padding on the left, which is "
                    "all that the tiered cache knows: pad on the left, or use another cache"
                )
        return real

    # ── between calls ────────────────────────────────────────────────────────────────────────────

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i continue row ``beam_idx[i]``: sealed blocks are shared, only the open one is copied."""
        self._rearrange(beam_idx.tolist())
        for layer in self._others:
            layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._rearrange([row for row in range(len(self.batch.rows)) for _ in range(repeats)])
        for layer in self._others:
            layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows."""
        chosen = torch.arange(len(self.batch.rows))[indices.cpu()]
        self._rearrange(chosen.tolist())
        for layer in self._others:
            layer.batch_select_indices(indices)

    def crop(self, tokens_to_remove: int) -> None:
        """Take tokens off the end: ``crop(-n)`` takes n, as transformers has it."""
        if tokens_to_remove > 0:
            raise BadInput(f"crop({tokens_to_remove}): give how many tokens to remove as a negative number")
        if self.tokens + tokens_to_remove < 0:
            raise BadInput(
                f"a cache of {self.tokens} tokens cannot be cropped by {-tokens_to_remove}: crop by {self.tokens} at most"
            )
        self.rollback()
        before = [dict(vars(layer)) for layer in self._others]
        try:
            for layer in self._others:
                layer.crop(tokens_to_remove)
            crop(self.store, self.batch.rows, -tokens_to_remove)
        except BaseException as error:
            for layer, state in zip(self._others, before, strict=True):
                vars(layer).update(state)
            if isinstance(error, UnitsLost):
                raise self.batch.lost(error) from error
            raise
        self.tokens += tokens_to_remove

    def reset(self) -> None:
        """Forget everything."""
        self.rollback()
        end(self.store, self.batch.rows)
        self.batch.rows.clear()
        self.tokens = 0
        for layer in self._others:
            layer.reset()

    def fork(self) -> TieredCache:
        """Return a cache that goes on from here on its own, and shares all sealed blocks."""
        self.rollback()
        twin = TieredCache(self.model, self.store, selective=self.batch.selector is not None, name=self.batch.name)
        twin.batch.rows[:] = fork(self.store, self.batch.rows)
        twin.tokens = self.tokens
        for layer, other in zip(twin._others, self._others, strict=True):
            vars(layer).update({name: _copied(value) for name, value in vars(other).items()})
        return twin

    def _rearrange(self, parents: Sequence[int]) -> None:
        self.rollback()
        self.batch.rows[:] = rearrange(self.store, self.batch.rows, parents)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
