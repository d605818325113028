"""Pitfalls of transformers' interfaces, and what users of other tiered caches reported, where no other file names them.

A number is that of the list in the log: ``pitfall`` of the interfaces, ``problem`` of users. See `test_calls` and
`test_faults` for the others.
"""

import numpy as np
import pytest
import torch
from tests.live.families import (
    FAMILIES,
    Pair,
    adds_up,
    ends_clean,
    generate,
    ids_of,
    live,
    logits_of,
    stock,
    stock_twin,
    tiny_once,
)
from transformers.cache_utils import DynamicCache

from kvpager.core import DRAM, NVME
from kvpager.live.transformers import ATTENTION


def test_pitfall_2_the_cache_hands_out_the_logical_length_and_no_bytes(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=100, hbm="40%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 61))
        new = torch.zeros(1, 2, 1, 16)
        keys, values = opened.cache.layers[0].update(new, new)
        assert keys.shape == values.shape == (1, 2, 62, 16)
        assert keys.is_meta
        opened.cache.rollback()


def test_pitfall_6_a_cache_that_holds_all_but_the_last_token_feeds_one(tmp_path):
    model = tiny_once("llama")
    ids, fed = ids_of(1, 70), []
    with live(model, tmp_path, context=100, hbm="40%") as opened:
        Pair(opened).forward(ids[:, :69])
        hook = model.model.embed_tokens.register_forward_pre_hook(lambda _, given: fed.append(given[0].shape[1]))
        try:
            generate(model, opened.cache, ids, max_new_tokens=3)
        finally:
            hook.remove()
    assert fed == [1, 1, 1]


def test_pitfall_7_beams_copy_only_their_open_block(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=130, rows=4, hbm="60%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(4, 101))
        pair.forward(ids_of(4, 1))
        store = opened.store
        before, log = store.table.size, len(store.driver.log)
        pair.cache.reorder_cache(torch.tensor([2, 2, 2, 2]))
        assert store.table.size - before == 3 * store.table.units_per_block, "three copies of one open block"
        assert not [move for move in store.driver.log[log:] if move.why in ("demand", "backup")], "no byte of a sealed one moved"
        sealed = [row.bases[: row.sealed] for row in pair.cache.batch.rows]
        assert all(np.array_equal(sealed[0], other) for other in sealed)
        pair.dense.reorder_cache(torch.tensor([2, 2, 2, 2]))
        pair.forward(ids_of(4, 3, 1))
        ends_clean(opened)


def test_pitfall_9_a_step_too_many_is_taken_back(tmp_path):
    """As `generate` does where it looks at its stopping criteria a step late."""
    with live(tiny_once("gemma2"), tmp_path, context=100, hbm="40%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 50))
        for step in range(9):
            pair.forward(ids_of(1, 1, step))
            pair.forward(ids_of(1, 1, 100 + step))
            pair.crop(1)
        adds_up(opened)


def test_problem_3_a_tiny_read_set_keeps_causality_and_padding(tmp_path):
    """Two rows of one batch, differently padded, choose and read as each does alone."""
    model, ids = tiny_once("llama"), ids_of(2, 150)
    mask = torch.ones_like(ids)
    ids[1, :41], mask[1, :41] = 0, 0
    options = {"selective": True, "selector": "key_bound:read_fraction=0.05,sink=1,recent=1", "context": 170, "hbm": "30%"}
    found = {}
    for name, rows, span in (("both", [0, 1], 0), ("first", [0], 0), ("second", [1], 41)):
        with live(model, tmp_path / name, rows=len(rows), **options) as opened:
            output = generate(model, opened.cache, ids[rows, span:], mask[rows, span:], max_new_tokens=12, min_new_tokens=12)
            found[name] = output.sequences[:, -12:], logits_of(output)
    for row, name in enumerate(("first", "second")):
        assert torch.equal(found["both"][0][row], found[name][0][0])
        torch.testing.assert_close(found["both"][1][:, row], found[name][1][:, 0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_problem_6_the_registered_function_without_tiers_is_stock_attention(family):
    model, ids = tiny_once(family), ids_of(2, 60)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    twin = stock_twin(model)
    model.set_attn_implementation(ATTENTION)
    with torch.inference_mode():
        mine = model(ids, attention_mask=mask, cache=DynamicCache(config=model.config)).logits
        other = twin(ids, attention_mask=mask, cache=stock(twin)).logits
    torch.testing.assert_close(mine[mask.bool()], other[mask.bool()], atol=1e-4, rtol=0)


def test_problem_12_every_configured_tier_gets_its_traffic(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=200, hbm="15%", dram="20%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 150))
        for step in range(6):
            pair.forward(ids_of(1, 1, step))
        adds_up(opened)
        store = opened.store
        sealed = int(store.table.sealed[: store.table.size].sum())
        assert store.disk.written_units["backup"] == sealed > 0
        assert store.slabs.used_bytes == sealed * store.layout.unit_bytes
        assert opened.read(DRAM) > 0 < opened.read(NVME)
        ends_clean(opened)


def test_problem_15_free_hbm_is_used_and_a_shared_prefix_is_held_once(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=220, rows=3, hbm="100%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 160))
        pair.both("batch_repeat_interleave", 3)
        pair.mask = pair.mask.repeat_interleave(3, 0)
        for step in range(6):
            pair.forward(ids_of(3, 1, step))
        store = opened.store
        assert opened.read(NVME) == 0, "what fits is never read from below"
        shared = [row.bases[:40] for row in pair.cache.batch.rows]
        assert all(np.array_equal(shared[0], other) for other in shared)
        used = len(store.memory.arena.memory) - store.memory.arena.free
        assert used <= (40 + 3 * 3) * store.table.units_per_block
        ends_clean(opened)


@pytest.mark.parametrize("prefetcher", [None, "previous"])
def test_problem_10_what_is_written_and_read_side_by_side_comes_back_whole(tmp_path, prefetcher):
    """Sessions take turns over one small store: backups of one are under way while another reads, and blocks are freed."""
    setting = {"hbm": "10%", "dram": "10%", "policy": "blend", "lockstep": False, "prefetcher": prefetcher}
    with live(tiny_once("llama"), tmp_path, context=260, rows=4, **setting) as opened:
        pairs = [Pair(opened), *(Pair(opened, opened.new_cache()) for _ in range(2))]
        for turn in range(8):
            for number, pair in enumerate(pairs):
                pair.forward(ids_of(1, 40 if (turn + number) % 2 else 3, 10 * turn + number))
                pair.forward(ids_of(1, 1, turn))
            pairs[turn % 3].crop(min(21, pairs[turn % 3].mask.shape[1] - 1))
        store = opened.store
        assert store.slabs.stats.checksum_failures == 0
        assert opened.read(DRAM) > 0 < opened.read(NVME)
        assert store.disk.written_units["backup"] > len(store.memory.arena.memory)
        adds_up(opened)
        ends_clean(opened)
