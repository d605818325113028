"""The reference: dense attention by transformers over a plain cache. Needs torch and transformers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.live.transformers import ATTENTION, LoadedModel, new_cache

__all__ = ["DenseRunner", "ModelLanguage"]

_PREFILL_TOKENS = 512


class ModelLanguage:
    """A loaded model's tokenizer. Fulfils `kvpager.evaluate.base.Language`.

    Parameters
    ----------
    loaded : LoadedModel
        Of which the tokenizer is used.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def opening(self, text: str) -> list[int]:  # noqa: D102 - of the protocol
        return self._loaded.tokenize(text)

    def more(self, text: str) -> list[int]:  # noqa: D102 - of the protocol
        ids = self._loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [int(token) for token in ids]

    def text(self, tokens: Sequence[int]) -> str:  # noqa: D102 - of the protocol
        return str(self._loaded.tokenizer.decode(list(tokens), skip_special_tokens=False))


class DenseRunner:
    """Decodes one sequence with dense attention. Fulfils `kvpager.evaluate.base.Runner`.

    Parameters
    ----------
    loaded : LoadedModel
        In float32 or whatever it was loaded in.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._network: Any = loaded.model
        self._cache = new_cache(self._network.config)
        self._last: torch.Tensor | None = None

    def start(self, tokens: Sequence[int]) -> None:  # noqa: D102 - of the protocol
        self._network.set_attn_implementation(ATTENTION)
        self._cache, self._last = new_cache(self._network.config), None
        for first in range(0, len(tokens), _PREFILL_TOKENS):
            self._forward(tokens[first : first + _PREFILL_TOKENS])

    def fork(self) -> DenseRunner:  # noqa: D102 - of the protocol
        twin = DenseRunner(self._loaded)
        twin._cache, twin._last = copy.deepcopy(self._cache), self._last
        return twin

    def turn(self, tokens: Sequence[int]) -> NDArray[np.float32]:  # noqa: D102 - of the protocol
        return np.asarray(self._forward(tokens).float().cpu().numpy(), np.float32)

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:  # noqa: D102 - of the protocol
        rows = [np.asarray(self._forward([token]).float().cpu().numpy(), np.float32) for token in tokens]
        return np.stack(rows) if rows else np.zeros((0, int(self._network.config.get_text_config().vocab_size)), np.float32)

    def generate(self, count: int) -> list[int]:  # noqa: D102 - of the protocol
        if self._last is None:
            raise BadInput("nothing was read yet, so there is nothing to go on from: start or feed first")
        chosen: list[int] = []
        for _ in range(count):
            chosen.append(int(self._last.argmax()))
            self._forward(chosen[-1:])
        return chosen

    def facts(self) -> dict[str, float]:  # noqa: D102 - of the protocol
        return {"read_mass": 1.0}

    def close(self) -> None:  # noqa: D102 - of the protocol
        self._cache = new_cache(self._network.config)

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append `tokens`; return the logits after the last, [vocabulary]."""
        ids = torch.tensor([list(tokens)], device=self._network.device)
        self._last = self._network(input_ids=ids, cache=self._cache, use_cache=True, logits_to_keep=1).logits[0, -1]
        return self._last
