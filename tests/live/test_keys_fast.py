"""Keys that stay in fast memory: the same bits as keys that come and go, at every size; and what re-ranking chooses by them."""

import numpy as np
import pytest
from tests.live.families import BLOCK, full_layers, generate, ids_of, layout_of, tiny_once

from kvpager.live.budget import live_budget
from kvpager.live.store import TieredStore
from kvpager.live.transformers import TieredCache

PROMPT, NEW = 200, 8


def run(folder, *, split, hbm, selector=None):
    """Generate; return tokens, logits, and the units read from disk for steps."""
    model = tiny_once("llama")
    layout = layout_of(model, BLOCK)._replace(split=split)
    budget = live_budget(layout, context_tokens=PROMPT + NEW, hbm=hbm)
    with TieredStore(
        budget, folder, layer_numbers=full_layers(model), fingerprint="tiny", policy="lru", selector=selector, disk_bytes=64 << 20
    ) as store:
        cache = TieredCache(model, store, selective=selector is not None, name="test")
        found = generate(model, cache, ids_of(1, PROMPT), max_new_tokens=NEW, min_new_tokens=NEW)
        return found.sequences.tolist(), np.stack([step.numpy() for step in found.logits]), store.disk.read_units.get("demand", 0)


@pytest.mark.parametrize("selector", [None, "key_bound:read_fraction=0.3"])
def test_keys_apart_change_no_bit(tmp_path, selector):
    tokens, logits, _ = run(tmp_path / "whole", split=False, hbm="100%", selector=selector)
    for hbm in ("100%", "60%"):
        mine, found, reads = run(tmp_path / hbm, split=True, hbm=hbm, selector=selector)
        assert mine == tokens
        np.testing.assert_array_equal(found, logits)
        assert (reads > 0) == (hbm != "100%")


def test_reranking_does_not_depend_on_where_values_are(tmp_path):
    selector = "key_bound:read_fraction=0.2,rerank=3"
    tokens, logits, _ = run(tmp_path / "all", split=True, hbm="100%", selector=selector)
    mine, found, reads = run(tmp_path / "some", split=True, hbm="60%", selector=selector)
    plain, other, _ = run(tmp_path / "plain", split=True, hbm="100%", selector="key_bound:read_fraction=0.2")
    assert mine == tokens
    np.testing.assert_array_equal(found, logits)
    assert reads > 0
    assert plain != tokens or not np.array_equal(other, logits), "or this test says nothing"


@pytest.mark.parametrize("split", [False, True])
def test_the_payload_that_a_run_reports_is_the_share_that_it_reports(tmp_path, split):
    model = tiny_once("llama")
    budget = live_budget(layout_of(model, BLOCK)._replace(split=split), context_tokens=PROMPT, hbm="60%")
    with TieredStore(
        budget, tmp_path, layer_numbers=full_layers(model), fingerprint="tiny", policy="lru", disk_bytes=64 << 20
    ) as store:
        found = store.document()
    assert found["hbm_payload_bytes"] / budget.kv_bytes == found["hbm_fraction"]
