"""A session: token ids and a tiered cache that go through a model together, and survive the process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kvpager.errors import BadInput, BlockLostError, ModelError, StoreError, UnitsLost
from kvpager.live import revive
from kvpager.live.fingerprint import fingerprint
from kvpager.live.park import Parked
from kvpager.live.rows import Row
from kvpager.live.store import TieredStore
from kvpager.live.transformers.cache import TieredCache, TieredLayer
from kvpager.live.transformers.loading import LoadedModel
from kvpager.slab.folder import differences

__all__ = ["Session"]

_MOST_LOSSES = 8
"""Losses met while one token is computed: before the last, the session goes back to the lost block; at the last, to its start."""


class Session:
    """One sequence, its tokens and its cache. Open until `close`; parked, it can be resumed by any process.

    Parameters
    ----------
    loaded : LoadedModel or PreTrainedModel
        The model. Of a bare one, the weights are hashed at each call.
    store : TieredStore
        Where its blocks are; opened with ``fingerprint(loaded, layout)``.
    selective : bool
        Whether a step reads what the store's selector chooses; otherwise attention is exact.
    id : str, optional
        Letters, digits, dots, dashes and underscores, at most 64; otherwise random.
    chunk : int
        Tokens that go through the model at once in a prefill.

    Attributes
    ----------
    id : str
        As given, or random.
    tokens : list of int
        All tokens, those that are not in the cache yet included.
    cache : TieredCache
        The cache.
    notices : list of str
        What a user should know: blocks that were lost and computed again.

    Raises
    ------
    StoreError
        If the store was opened for another model or layout; the message says what differs.
    BadInput
        If the id is taken or cannot be used.
    """

    def __init__(
        self, loaded: Any, store: TieredStore, *, selective: bool = False, id: str | None = None, chunk: int = 512
    ) -> None:
        self._start(loaded, store, selective, store.shelf.new_id(id), chunk)

    def _start(self, loaded: Any, store: TieredStore, selective: bool, id: str, chunk: int) -> None:
        if chunk < 1:
            raise BadInput(f"a prefill of {chunk} tokens a call makes no progress: give chunk=1 or more")
        _check("store", store.fingerprint, fingerprint(loaded, store.layout))
        self._loaded, self._model = loaded, loaded.model if isinstance(loaded, LoadedModel) else loaded
        self.store, self.id, self._selective, self._chunk = store, id, selective, chunk
        self.cache = TieredCache(self._model, store, selective=selective, name=id)
        for layer in self._others():
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise ModelError(f"a session cannot park the state of a {type(layer).__name__}: use a TieredCache without one")
        self.tokens: list[int] = []
        self.notices: list[str] = []
        self._random = torch.Generator()
        self._random.seed()
        self._logits: Tensor | None = None
        self._closed = False
        store.shelf.open[id] = self.cache.batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────

    def run(
        self,
        max_new_tokens: int,
        prompt: Sequence[int] = (),
        *,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int | None = None,
        on_token: Callable[[int], None] | None = None,
        on_fed: Callable[[int, int], None] | None = None,
        stop: Collection[int] = (),
    ) -> list[int]:
        """Append `prompt`, then generate.

        A block that was lost is computed again: its tokens and all that follow go through the model once more, and
        are counted in ``store.counts.recomputed_tokens``. An interrupt leaves a session that goes on where it stood.

        Parameters
        ----------
        max_new_tokens : int
            At most so many; 0 = only take in the prompt.
        prompt : sequence of int
            Token ids.
        do_sample : bool
            Draw from the distribution; otherwise take the most likely token.
        temperature, top_p : float
            Of the distribution: divides the logits; the smallest set of tokens with this probability is kept.
        seed : int, optional
            Starts the session's random numbers anew. They are parked with it.
        on_token : callable, optional
            Told each new token; may park the session.
        on_fed : callable, optional
            Told how many of the session's tokens are in the cache, and how many there are, while the prompt is taken in.
        stop : collection of int
            Token ids after which generation ends.

        Returns
        -------
        list of int
            The new tokens, one of `stop` included.

        Raises
        ------
        BlockLostError
            If blocks go on being lost.
        """
        self._check_run(max_new_tokens, prompt, temperature, top_p)
        if seed is not None:
            self._random.manual_seed(seed)
        self.tokens += [int(token) for token in prompt]
        new: list[int] = []
        logits = self._feed(on_fed)
        while len(new) < max_new_tokens and not (new and new[-1] in stop):
            if new:
                logits = self._feed()
            if logits is None:
                raise BadInput(f"session {self.id!r} has no tokens to go on from: give it a prompt")
            token = self._choose(logits, do_sample, temperature, top_p)
            self._logits = None
            self.tokens.append(token)
            new.append(token)
            if on_token is not None:
                on_token(token)
        return new

    def _check_run(self, max_new_tokens: int, prompt: Sequence[int], temperature: float, top_p: float) -> None:
        self._check_open()
        words = self._model.config.get_text_config(decoder=True).vocab_size
        wrong = {
            f"max_new_tokens is {max_new_tokens}: give 0 or more": max_new_tokens < 0,
            f"temperature is {temperature}: give more than 0, or do_sample=False": not temperature > 0,
            f"top_p is {top_p}: give more than 0 and at most 1": not 0 < top_p <= 1,
            f"the prompt holds a token id outside 0 to {words - 1}": not all(0 <= token < words for token in prompt),
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise BadInput(message)

    def _feed(self, told: Callable[[int, int], None] | None = None) -> Tensor | None:
        """Let what is not in the cache go through the model; return the logits of the last token, [words]."""
        losses = 0
        while self.cache.tokens < len(self.tokens):
            part = self.tokens[self.cache.tokens : self.cache.tokens + self._chunk]
            try:
                with torch.no_grad():
                    ids = torch.tensor([part], device=self.store.device)
                    out = self._model(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1)
            except BlockLostError as error:
                losses += 1
                if losses > _MOST_LOSSES:
                    raise
                self._step_back(error.block if losses < _MOST_LOSSES else 0, str(error))
            else:
                self._logits = out.logits[0, -1].float().cpu()
                if told is not None:
                    told(self.cache.tokens, len(self.tokens))
        return self._logits

    def _choose(self, logits: Tensor, do_sample: bool, temperature: float, top_p: float) -> int:
        if not do_sample:
            return int(logits.argmax())
        probability = torch.softmax(logits / temperature, -1)
        if top_p < 1:
            ordered, tokens = probability.sort(descending=True, stable=True)
            ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
            probability = torch.zeros_like(probability).scatter(-1, tokens, ordered)
        return int(torch.multinomial(probability, 1, generator=self._random))

    def _step_back(self, block: int, why: str) -> None:
        """Return to the start of `block`: the tokens from there on are fed again."""
        before, keep = self.cache.tokens, block * self.store.table.block_size
        if any(layer.is_sliding and layer.get_seq_length() >= layer.sliding_window for layer in self._others()):
            keep = 0  # what a window has left behind comes back only by computing everything
        if keep:
            self.cache.crop(keep - before)
        else:
            self.cache.reset()
        self._logits = None
        self.store.counts.recomputed_tokens += before - keep
        self.notices.append(f"{before - keep} tokens of session {self.id!r} are computed again: {why}")

    # ── on disk ──────────────────────────────────────────────────────────────────────────────────

    def park(self) -> str:
        """Make the session durable, and return its id. It stays open.

        Raises
        ------
        StorageFull, StoreError
            If the disk is full, or refuses. What was parked before stays.
        """
        self._check_open()
        store, batch = self.store, self.cache.batch
        self.cache.rollback()
        revive.settle(store, batch)
        self._mend()
        arrays = {"random": self._random.get_state()}
        for number, layer in enumerate(self._others()):
            if layer.is_initialized:
                arrays |= {f"keys.{number}": layer.keys, f"values.{number}": layer.values}
        if self._logits is not None:
            arrays["logits"] = self._logits
        row = batch.rows[0] if batch.rows else Row(-1)
        arrays |= revive.take(store, row)
        blocks = row.bases[: row.sealed] // store.table.units_per_block
        tokens, cached, keys = list(self.tokens), self.cache.tokens, store.disk.keys_of(blocks)
        store.slabs.sync()
        store.shelf.write(Parked(self.id, store.fingerprint, tokens, cached, keys, store.summary_name, arrays), blocks)
        return self.id

    @classmethod
    def resume(cls, loaded: Any, store: TieredStore, id: str, *, selective: bool = False, chunk: int = 512) -> Session:
        """Open a parked session; it continues as if it had never been interrupted.

        Blocks that are missing in the backing store are computed again by the next `run`; `notices` tells.

        Parameters
        ----------
        loaded : LoadedModel or PreTrainedModel
            The model that it was made with.
        store : TieredStore
            The store that it was parked in.
        id : str
            Its id.
        selective : bool
            As for a new session.
        chunk : int
            As for a new session.

        Raises
        ------
        StoreError
            If there is none, it is damaged, or it was made by another model or layout; the message says what differs.
        BadInput
            If it is open.
        CapacityError
            If HBM cannot hold its open block.
        """
        if id in store.shelf.open:
            raise BadInput(f"session {id!r} is open in this process: go on with it, or fork it")
        parked = store.shelf.read(id)
        _check(f"session {id!r}", parked.fingerprint, store.fingerprint)
        session = cls.__new__(cls)
        session._start(loaded, store, selective, id, chunk)
        try:
            session._restore(parked)
        except BaseException:
            session.close()
            raise
        return session

    def _restore(self, parked: Parked) -> None:
        arrays, cache, store = parked.arrays, self.cache, self.store
        self.tokens = list(parked.tokens)
        self._random.set_state(arrays["random"])
        self._logits = arrays.get("logits")
        if not parked.cached:
            return
        row = revive.put_back(store, parked)
        cache.batch.rows.append(row)
        cache.tokens = parked.cached
        for number, layer in enumerate(self._others()):
            keys, values = (arrays[f"{name}.{number}"].to(store.device) for name in ("keys", "values"))
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if layer.is_sliding:
                layer.cumulative_length = parked.cached
        self._summarise(parked, row)
        self._mend()

    def _summarise(self, parked: Parked, row: Row) -> None:
        """Have the key summaries of a row that was put back."""
        while self.cache.batch.rows:
            try:
                return revive.summarise_again(self.store, parked, row)
            except UnitsLost as lost:
                self._step_back(self.cache.batch.lost(lost).block, str(lost))

    def _mend(self) -> None:
        """Step back to the first block that has no copy left, if there is one."""
        lost = revive.first_lost(self.store, self.cache.batch.rows[0]) if self.cache.batch.rows else None
        if lost is not None:
            self._step_back(lost, f"block {lost} is missing in the backing store")

    def fork(self, id: str | None = None) -> Session:
        """Return a session that continues this one on its own, random state included; sealed blocks are shared.

        Raises
        ------
        CapacityError
            If HBM cannot hold one more open block.
        """
        self._check_open()
        twin = Session(self._loaded, self.store, selective=self._selective, id=id, chunk=self._chunk)
        try:
            twin.cache = self.cache.fork()
        except BaseException:
            twin.close()
            raise
        twin.cache.batch.name = twin.id
        self.store.shelf.open[twin.id] = twin.cache.batch
        twin.tokens, twin._logits = list(self.tokens), self._logits
        twin._random.set_state(self._random.get_state())
        return twin

    def close(self) -> None:
        """Give its memory back. What is parked stays parked."""
        if self._closed:
            return
        self._closed = True
        self.store.shelf.open.pop(self.id, None)
        self.cache.reset()

    def drop(self) -> None:
        """Close the session and forget what is parked of it; blocks that other sessions hold stay."""
        self.store.shelf.remove(self.id)
        self.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _others(self) -> list[Any]:
        """Layers of the cache that are not tiered."""
        return [layer for layer in self.cache.layers if not isinstance(layer, TieredLayer)]

    def _check_open(self) -> None:
        if self._closed:
            raise BadInput(f"session {self.id!r} is closed: resume it if it is parked, or begin a new one")


def _check(whose: str, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise StoreError(
            f"the {whose} belongs to another model or layout ({differences(theirs, ours)}): use it with what it was made by"
        )
