"""The live cache as the evaluation drives it: one context, forks of it, and tokens fed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray

from kvpager.live.store import TieredStore
from kvpager.live.transformers.cache import TieredCache
from kvpager.live.transformers.loading import LoadedModel

__all__ = ["TieredRunner"]


class TieredRunner:
    """Decodes over tiers; fulfils `kvpager.evaluate.base.Runner`.

    Parameters
    ----------
    loaded : LoadedModel
        The model.
    store : TieredStore
        Shared by all forks.
    selective : bool
        Whether steps read what the store's selector chooses.
    chunk : int
        Tokens of a prefill call.
    measure_every : int
        Every so many steps, the mass of what was read is measured by reading all the rest; 0 = never.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        store: TieredStore,
        *,
        selective: bool = True,
        chunk: int = 512,
        measure_every: int = 0,
    ) -> None:
        self._loaded, self._store, self._chunk, self._measure_every = loaded, store, chunk, measure_every
        self._logits: NDArray[np.float32] = np.empty(0, np.float32)
        self._take(TieredCache(loaded.model, store, selective=selective))

    def _take(self, cache: TieredCache) -> None:
        self.cache = cache
        cache.batch.measure_every = self._measure_every
        self._before = (self._store.counts.mass_read, self._store.counts.mass_probes)

    @torch.inference_mode()
    def start(self, tokens: Sequence[int]) -> None:
        """Begin anew with `tokens`, read densely."""
        self.cache.reset()
        self._take(self.cache)
        for first in range(0, len(tokens), self._chunk):
            self._logits = self._forward(tokens[first : first + self._chunk])[-1]

    def fork(self) -> TieredRunner:
        """Return a runner that goes on from here on its own."""
        twin = copy(self)
        twin._take(self.cache.fork())
        return twin

    @torch.inference_mode()
    def turn(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` in one call, which reads densely; return the logits after the last, float32 [vocabulary]."""
        self._logits = self._forward(tokens)[-1]
        return self._logits

    @torch.inference_mode()
    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` one by one; return the logits after each, float32 [n, vocabulary]."""
        found = np.stack([self._forward([token])[-1] for token in tokens])
        self._logits = found[-1]
        return found

    def generate(self, count: int) -> list[int]:
        """Return the next `count` tokens, greedily."""
        chosen = []
        for _ in range(count):
            chosen.append(int(self._logits.argmax()))
            self.feed(chosen[-1:])
        return chosen

    def facts(self) -> dict[str, float]:
        """Return the share of the attention mass on what was read since the start or the fork, if it was measured."""
        counts, (mass, probes) = self._store.counts, self._before
        measured = counts.mass_probes - probes
        return {"read_mass": (counts.mass_read - mass) / measured} if measured else {}

    def close(self) -> None:
        """Free the rows."""
        self.cache.reset()

    def _forward(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        ids = torch.tensor([list(tokens)], device=self._store.device)
        out = self._loaded.model(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1)
        logits: NDArray[np.float32] = out.logits[0].float().cpu().numpy()
        return logits
