"""Six families x the ways of generating: equal to `DynamicCache`, and to the bit between sizes, policies and pools (law 5)."""

import functools

import pytest
import torch
from tests.live.families import FAMILIES, adds_up, ends_clean, generate, ids_of, live, logits_of, stock, tiny_once

from kvpager.core import DRAM, NVME

PROMPT, NEW = 272, 10
CONTEXT = PROMPT + NEW + 8  # drafted tokens of prompt lookup too

MODES = {
    "padded": (2, {}),
    "beams": (4, {"num_beams": 4, "pads": ()}),
    "samples": (3, {"do_sample": True, "num_return_sequences": 3, "pads": ()}),
    "chunks": (2, {"prefill_chunk_size": 48}),
    "lookup": (1, {"prompt_lookup_num_tokens": 4, "pads": ()}),
}
SETTINGS = {
    "small-lru": {"hbm": "12%", "dram": "20%", "policy": "lru"},
    "small-ema-layer": {"hbm": "12%", "policy": "ema", "pool": "layer"},
    "smaller-blend-free": {"hbm": "10%", "dram": "10%", "policy": "blend", "lockstep": False},
    "half-random-equal": {"hbm": "50%", "policy": "random", "pool": "equal", "seed": 3},
    "whole": {"hbm": "100%", "policy": "lru"},
    "prefetching": {"hbm": "15%", "policy": "blend", "prefetcher": "previous", "lockstep": False},
}
FEW = ("small-lru", "whole")
SOON = {  # a third, each family and each mode in it
    ("llama", "padded"), ("llama", "lookup"), ("qwen2", "chunks"), ("qwen3", "samples"), ("mistral", "beams"),
    ("ministral", "padded"), ("ministral", "lookup"), ("gemma2", "padded"), ("gemma2", "chunks"), ("gemma3_text", "beams"),
    ("gemma3_text", "lookup"),
}  # fmt: skip


def prompt_of(mode):
    """Ids and mask: two rows with different padding, or one that repeats itself."""
    rows, options = MODES[mode]
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW} | options
    pads = options.pop("pads", (17, 3))
    ids = ids_of(max(len(pads), 1), PROMPT + 17 if pads else PROMPT)
    if mode == "lookup":
        ids[:, PROMPT // 2 :] = ids[:, : PROMPT // 2]
    mask = torch.ones_like(ids)
    for row, pad in enumerate(pads):
        ids[row, :pad], mask[row, :pad] = 0, 0
    return rows, ids, mask, options


@functools.cache
def expected(family, mode):
    model = tiny_once(family)
    _, ids, mask, options = prompt_of(mode)
    output = generate(model, stock(model), ids, mask, **options)
    return output.sequences, logits_of(output)


def run(family, mode, folder, settings):
    model = tiny_once(family)
    rows, ids, mask, options = prompt_of(mode)
    with live(model, folder, context=CONTEXT + 17, rows=rows, **settings) as opened:
        output = generate(model, opened.cache, ids, mask, **options)
        assert min(len(row.bases) for row in opened.cache.batch.rows) >= 64
        adds_up(opened)
        if opened.budget.hbm_fraction < 0.2:
            assert opened.read(NVME) > 0
            assert not opened.budget.dram_units or opened.read(DRAM) > 0
        ends_clean(opened)
    return output.sequences, logits_of(output)


def check_cell(family, mode, folder, names):
    tokens, logits = expected(family, mode)
    first = None
    for name in names:
        mine, found = run(family, mode, folder / name, SETTINGS[name])
        assert torch.equal(mine, tokens), name
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=0)
        first = found if first is None else first
        assert torch.equal(found, first), f"{name} differs from {names[0]} in some bit"


@pytest.mark.parametrize(("family", "mode"), sorted(SOON))
def test_tiers_change_no_token_and_no_bit(family, mode, tmp_path):
    check_cell(family, mode, tmp_path, FEW)


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_neither_size_policy_pool_nor_arrival_order_changes_a_bit(family, mode, tmp_path):
    check_cell(family, mode, tmp_path, tuple(SETTINGS))
