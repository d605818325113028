"""Selective attention over tiers: all of it is exact attention, a tenth of it is a tenth, wherever units are."""

import functools

import numpy as np
import pytest
import torch
from tests.live.families import adds_up, ends_clean, generate, ids_of, live, logits_of, tiny_once

from kvpager.core import DRAM, NVME
from kvpager.errors import BadInput
from kvpager.live.store import make_selector

PROMPT, NEW = 150, 5
REST = ("key_mean", "history", "recent_only", "note_blend")
LIVE = ("key_bound", "outlier_mean", *(pytest.param(name, marks=pytest.mark.long) for name in REST))
SHARED = {"context": PROMPT + NEW, "rows": 2}


def prompt():
    ids = ids_of(2, PROMPT)
    mask = torch.ones_like(ids)
    ids[1, :7], mask[1, :7] = 0, 0
    return ids, mask


def run(folder, *, selective=True, **settings):
    """Generate; return logits, counts and the units of each demand."""
    model = tiny_once("llama")
    with live(model, folder, selective=selective, **SHARED, **settings) as opened:
        demands = []
        request = opened.store.pager.request

        def watched(demand):
            demands.append((demand.tick, demand.units.copy()))
            return request(demand)

        opened.store.pager.request = watched
        output = generate(model, opened.cache, *prompt(), max_new_tokens=NEW, min_new_tokens=NEW)
        adds_up(opened)
        if opened.budget.hbm_fraction < 0.2:
            assert opened.read(NVME) > 0
            assert not opened.budget.dram_units or opened.read(DRAM) > 0
        bases = [row.bases.copy() for row in opened.cache.batch.rows]
        ends_clean(opened)
        return logits_of(output), demands, bases, opened


@functools.cache
def exact(folder):
    return run(folder / "exact", selective=False)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("exact")


@pytest.mark.parametrize("selector", [pytest.param("dense", marks=pytest.mark.long), *LIVE])
def test_reading_all_of_it_is_exact_attention_to_the_bit(selector, tmp_path, folder):
    logits, *_ = run(tmp_path, selector=selector if selector == "dense" else f"{selector}:read_fraction=1.0")
    assert torch.equal(logits, exact(folder))


@pytest.mark.parametrize("selector", LIVE)
def test_a_tenth_reads_a_tenth_with_sink_and_recent_wherever_units_are(selector, tmp_path, folder):
    """Law 3's precondition too: what is asked for depends on neither HBM's size, tier 2, policy nor arrival order."""
    text = f"{selector}:read_fraction=0.1,sink=1,recent=2"
    small = {"hbm": "12%", "policy": "lru", "dram": "10%"}
    logits, demands, bases, opened = run(tmp_path / "small", selector=text, **small)
    assert not torch.equal(logits, exact(folder)), "it is an approximation"
    heads = opened.store.layout.kv_heads
    assert len(demands) == opened.store.layout.layers * (NEW - 1)
    for tick, units in demands:
        for row in bases:
            mine = units[np.isin(units // opened.store.table.units_per_block, row // opened.store.table.units_per_block)]
            complete = (PROMPT - (7 if row is bases[1] else 0) + tick.step) // 4
            assert len(mine) == heads * -(-complete // 10), "the share, rounded up, and no more"
            blocks = {int(block) for block in np.searchsorted(row, mine, side="right") - 1}
            assert {0, complete - 1, complete - 2} <= blocks
    whole, same, _, _ = run(tmp_path / "whole", selector=text, hbm="100%", policy="blend", lockstep=False)
    assert torch.equal(logits, whole)
    assert len(same) == len(demands)
    for (tick, units), (other_tick, other) in zip(demands, same, strict=True):
        assert tick == other_tick
        assert np.array_equal(units, other)


def test_what_was_read_last_is_read_again_where_it_is_asked_for(tmp_path):
    text = "key_bound:read_fraction=0.1,previous=1.0"
    _, demands, _, opened = run(tmp_path, selector=text)
    layers = opened.store.layout.layers
    for (_, units), (_, later) in zip(demands[: layers * 2], demands[layers : layers * 3], strict=True):
        assert len(np.intersect1d(units, later)) >= 0.8 * len(units)


def test_selectors_that_need_what_no_live_run_has_are_refused():
    with pytest.raises(BadInput, match="needs the mass of unread blocks, which no live run has"):
        make_selector("topk_mass:read_fraction=0.1")


def test_a_prefetcher_that_needs_key_bounds_is_refused(tmp_path):
    with pytest.raises(BadInput, match="'key-summary' needs key bounds, which a live run does not hand on"):
        run(tmp_path, prefetcher="key-summary")
    assert not any(tmp_path.rglob("*.slab"))
