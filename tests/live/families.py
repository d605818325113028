"""Tiny random models of the six families, live stores to run them over, and what must be true when a run ends."""

import copy
import functools
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from kvpager.core import DRAM, NVME, Tick
from kvpager.driver import Driver
from kvpager.live.budget import LiveBudget, live_budget
from kvpager.live.layout import Layout
from kvpager.live.store import TieredStore
from kvpager.live.transformers import TieredCache

BLOCK = 4
VOCABULARY = 199

_TINY = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SOME_SLIDE = {"sliding_window": 24, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
_GEMMA = {"sliding_window": 24, "query_pre_attn_scalar": 16, "num_hidden_layers": 4}
# transformers' Mistral has one kind of layer; Mistrals whose layers alternate are its Ministral.
_OWN = {
    "llama": {},
    "qwen2": _SOME_SLIDE | {"use_sliding_window": True},
    "qwen3": _SOME_SLIDE | {"use_sliding_window": True},
    "mistral": {"sliding_window": None},
    "ministral": _SOME_SLIDE,
    "gemma2": _GEMMA | {"attn_logit_softcapping": 2.0},
    "gemma3_text": _GEMMA | {"layer_types": ["full_attention", "sliding_attention"] * 2},
}
FAMILIES = tuple(_OWN)


def tiny(family, seed=0, **changes):
    """A random float32 model with 64-element rows: a unit of 4 tokens takes 512 bytes."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **(_TINY | _OWN[family] | changes))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


tiny_once = functools.cache(tiny)
"""The same, shared: whoever uses it sets the attention implementation first."""


def full_layers(model):
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * model.config.num_hidden_layers
    return tuple(number for number, kind in enumerate(kinds) if kind == "full_attention")


def layout_of(model, block_size=BLOCK):
    config = model.config
    heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    element = str(model.dtype).removeprefix("torch.")
    return Layout(len(full_layers(model)), heads, config.num_attention_heads // heads, width, width, block_size, element)


def stock(model):
    """Stock attention for `model`, and an empty `DynamicCache`: what a tiered run is held against."""
    model.set_attn_implementation("eager" if model.config.model_type == "gemma2" else "sdpa")
    return DynamicCache(config=model.config)


class WatchedDriver(Driver):
    """Checks the Pager's laws at each tick, and keeps all moves."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.log = []

    def begin(self, tick):
        super().begin(tick)
        self.pager.check()

    def submit(self, tick, moves):
        self.log += moves
        super().submit(tick, moves)


@dataclass
class Live:
    """A store with its cache."""

    model: object
    store: TieredStore
    budget: LiveBudget
    selective: bool = False
    caches: list = field(default_factory=list)

    @property
    def cache(self):
        return self.caches[0]

    def new_cache(self):
        self.caches.append(TieredCache(self.model, self.store, selective=self.selective, name="test"))
        return self.caches[-1]

    def read(self, tier):
        """Units that the tier's own counters say were read for attention."""
        reads = {DRAM: self.store.dram, NVME: self.store.disk}[tier].read_units
        return reads.get("demand", 0)


@contextmanager
def live(
    model, folder, *, context, rows=1, hbm="12%", dram=0, selective=False, split=False, disk_bytes=64 << 20,
    block_size=BLOCK, lockstep=True, driver=WatchedDriver, **settings,
):  # fmt: skip
    """Open a store and a cache for `model` in `folder`."""
    layout = layout_of(model, block_size)._replace(split=split)
    budget = live_budget(layout, context_tokens=context, hbm=hbm, dram=dram, rows=rows)
    settings = {"policy": "lru", "fingerprint": "tiny", "disk_bytes": disk_bytes} | settings
    with TieredStore(
        budget, folder, layer_numbers=full_layers(model), make_driver=driver, lockstep=lockstep, device=str(model.device),
        **settings,
    ) as store:  # fmt: skip
        opened = Live(model, store, budget, selective)
        opened.new_cache()
        yield opened


def settle(opened):
    """Let a tick pass, so that everything under way is answered."""
    driver = opened.store.driver
    driver.recover()
    driver.begin(Tick(opened.store.step, 0))


def adds_up(opened):
    """Law 1: each access was served by exactly one tier, and counts, moves and the tiers' own counters agree."""
    store = opened.store
    settle(opened)
    counts, log = store.counts, store.driver.log
    assert counts.served[4:].sum() == counts.prefill[4:].sum() == 0, "nothing was lost, nothing was missing"
    for number, tier in ((DRAM, store.dram), (NVME, store.disk)):
        for end, counter in (("src", tier.read_units), ("dst", tier.written_units)):
            moved: dict[str, int] = {}
            for move in log:
                if getattr(move, end) == number and move.why in ("demand", "prefetch", "backup", "demote"):
                    moved[move.why] = moved.get(move.why, 0) + len(move.units)
            assert counter == moved, f"tier {number}"
    read = opened.read(DRAM) + opened.read(NVME)
    assert read + counts.late == counts.units - counts.hits + counts.prefill[DRAM] + counts.prefill[NVME]
    alone = store.table.refs.max(initial=0) <= 1 and counts.units == counts.served.sum()  # one row: units are accesses
    if alone and not counts.late:
        for number in (DRAM, NVME):
            assert counts.served[number] + counts.prefill[number] == opened.read(number)
    table, pages = store.table, store.pager.pages
    held = table.refs[: table.size] > 0
    resident = store.pager.resident(np.flatnonzero(held).astype(np.int32))
    flying = int(np.count_nonzero(pages.flying[: table.size]))
    arena = store.memory.arena
    assert arena.free + int(resident.sum()) + flying == len(arena.memory), "arena slots are free or hold a unit"
    store.pager.check()
    store.slabs.check()
    store.dram.check()


def ends_clean(opened):
    """After all rows end, nothing is held anywhere and nothing is under way."""
    for cache in opened.caches:
        cache.reset()
    settle(opened)
    store = opened.store
    assert not store.pager.pending, "no pending moves leak"
    assert not store.driver._at
    assert not store.driver._staged
    assert store.memory.arena.free == len(store.memory.arena.memory)
    assert (store.table.refs == 0).all()
    assert store.pager.pools.used.sum() == 0
    assert store.dram.used_bytes() == store.slabs.used_bytes == 0
    store.slabs.check()


def ids_of(rows, tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, tokens), generator=generator)


def generate(model, cache, ids, mask=None, seed=1, **options):
    """Generate with logits; the attention implementation must be set."""
    torch.manual_seed(seed)
    ids, mask = (given.to(model.device) for given in (ids, torch.ones_like(ids) if mask is None else mask))
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True} | options
    return model.generate(ids, attention_mask=mask, cache=cache, **settings)


def logits_of(output):
    return torch.stack(output.logits)


class Pair:
    """A live cache and a `DynamicCache` of the same weights, which are told the same; their logits must agree."""

    def __init__(self, opened, cache=None):
        self.opened, self.cache = opened, cache or opened.cache
        self.twin = stock_twin(opened.model)
        self.dense = DynamicCache(config=self.twin.config)
        self.dense.activate_past_recording()
        self.cache.activate_past_recording()
        self.has_windows = any(layer.is_sliding for layer in self.dense.layers)
        self.cropped = False
        self.mask = None

    def forward(self, ids, mask=None, **options):
        """Run both; return the tiered logits of real tokens."""
        self.cropped = False
        new = torch.ones_like(ids) if mask is None else mask
        self.mask = new if self.mask is None else torch.cat([self.mask, new], 1)
        seen = self.mask if self.mask.min() == 0 else None
        if seen is not None and "position_ids" not in options:
            options["position_ids"] = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        with torch.inference_mode():
            mine = self.opened.model(ids, attention_mask=seen, cache=self.cache, **options).logits
            other = self.twin(ids, attention_mask=seen, cache=self.dense, **options).logits
        torch.testing.assert_close(mine[new.bool()], other[new.bool()], atol=1e-4, rtol=5e-5)
        assert self.cache.get_seq_length() == self.mask.shape[1]
        return mine

    def both(self, name, *arguments):
        """Call a method of both caches."""
        for cache in (self.cache, self.dense):
            getattr(cache, name)(*arguments)

    def crop(self, tokens):
        self.cropped = True
        self.both("crop", -tokens)
        self.mask = self.mask[:, : self.mask.shape[1] - tokens]

    def rearrange(self, parents):
        """Give row i what row ``parents[i]`` has."""
        self.both("batch_select_indices", torch.tensor(parents))
        self.mask = self.mask[parents]


@functools.cache
def stock_twin(model):
    """The same weights with stock attention."""
    twin = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=model.dtype).eval()
    twin.load_state_dict(model.state_dict())
    twin.set_attn_implementation("eager" if model.config.model_type == "gemma2" else "sdpa")
    return twin
