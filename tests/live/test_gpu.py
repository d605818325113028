"""The live cache on a GPU: the same laws over the same code, with real copies between HBM, pinned memory and disk."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.families import FAMILIES, Pair, adds_up, ends_clean, generate, ids_of, layout_of, live, logits_of, stock, tiny
from tests.live.test_matrix import CONTEXT, MODES, SETTINGS, prompt_of

from kvpager.core import DRAM, NVME
from kvpager.errors import CapacityError
from kvpager.live.fingerprint import fingerprint
from kvpager.live.transformers import Session
from kvpager.tiers.device import DeviceArena

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
RERANKED = "key_bound:read_fraction=0.2,rerank=3"


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.fail(f"PyTorch {torch.__version__} sees no CUDA GPU: these tests are not run without one")


@functools.cache
def on_gpu(family, dtype=torch.float32):
    return tiny(family).to(GPU, dtype)


# ── the arena ────────────────────────────────────────────────────────────────────────────────────


def content_of(arena, slots):
    return arena.memory.cpu().numpy()[slots]


def numbered(rows, width=512, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, width), np.uint8)


@given(st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_what_is_moved_arrives_whole_and_nothing_else_changes(count, seed):
    random = np.random.default_rng(seed)
    arena = DeviceArena(64, 512, GPU)
    before = numbered(64, seed=seed)
    arena.write(np.arange(64, dtype=np.int32), before)
    slots, others = (random.permutation(64)[:count].astype(np.int32) for _ in range(2))
    np.testing.assert_array_equal(arena.read(slots), before[slots])
    _, memory, places = arena.outgoing(slots)
    np.testing.assert_array_equal(memory[places], before[slots])
    host = arena.neighbour(50)
    there = host.take(count)
    arena.save(slots, host, there)
    arena.load(others, host, there)
    expected = before.copy()
    expected[others] = before[slots]
    np.testing.assert_array_equal(content_of(arena, np.arange(64)), expected)
    np.testing.assert_array_equal(host.memory[there], before[slots])
    _, memory, places = passage = arena.incoming(slots)
    memory[places] = new = numbered(count, seed=seed + 1)
    good = random.random(count) < 0.7
    arena.arrived(passage, good)
    expected[slots[good]] = new[good]
    np.testing.assert_array_equal(content_of(arena, np.arange(64)), expected)
    host.close()
    arena.close()


def test_copies_and_kernels_wait_for_each_other_where_they_must():
    """Slots that are read by a long kernel, then given away: what arrives must not be seen by it, and what leaves is whole."""
    arena = DeviceArena(4096, 4096, GPU)
    slots = np.arange(4096, dtype=np.int32)
    host = arena.neighbour(4096)
    for round in range(8):
        arena.memory.fill_(round)
        torch.cuda._sleep(20_000_000)
        total = arena.memory.to(torch.int64).sum()
        arena.save(slots, host, slots)
        arena.memory.fill_(255)  # the model writes to slots that are free again
        _, memory, places = passage = arena.incoming(slots)
        memory[places] = 100 + round
        arena.arrived(passage, slots >= 0)
        seen = arena.memory.to(torch.int64).sum()
        assert int(total) == round * arena.memory.numel()
        assert int(seen) == (100 + round) * arena.memory.numel()
        assert (host.memory == round).all()
    host.close()


def test_more_than_the_gpu_has_is_refused():
    with pytest.raises(CapacityError, match="are free: give HBM less"):
        DeviceArena(1 << 30, 1 << 12, GPU)


# ── law 5 ────────────────────────────────────────────────────────────────────────────────────────


def run(family, mode, folder, settings):
    model = on_gpu(family)
    rows, ids, mask, options = prompt_of(mode)
    with live(model, folder, context=CONTEXT + 17, rows=rows, **settings) as opened:
        output = generate(model, opened.cache, ids, mask, **options)
        adds_up(opened)
        if opened.budget.hbm_fraction < 0.2:
            assert opened.read(NVME) > 0
            assert not opened.budget.dram_units or opened.read(DRAM) > 0
        ends_clean(opened)
    return output.sequences, logits_of(output)


@pytest.mark.parametrize(
    ("family", "mode"), [(family, "padded") for family in FAMILIES] + [("llama", mode) for mode in MODES if mode != "padded"]
)
def test_tiers_change_no_token_and_no_bit(family, mode, tmp_path):
    model = on_gpu(family)
    _, ids, mask, options = prompt_of(mode)
    dense = generate(model, stock(model), ids, mask, **options)
    first = None
    for name in ("small-lru", "smaller-blend-free", "whole"):
        tokens, logits = run(family, mode, tmp_path / name, SETTINGS[name])
        if mode != "samples":  # drawn tokens turn on the last bits of the logits
            assert torch.equal(tokens, dense.sequences), name
            torch.testing.assert_close(logits, logits_of(dense), atol=2e-4, rtol=0)
        first = logits if first is None else first
        assert torch.equal(logits, first), f"{name} differs from small-lru in some bit"


def test_half_precision_agrees_with_dense_attention(tmp_path):
    model, ids = on_gpu("llama", torch.bfloat16), ids_of(1, 300)
    found = []
    for hbm in ("100%", "12%"):
        with live(model, tmp_path / hbm, context=320, hbm=hbm, block_size=16) as opened:
            found.append(logits_of(generate(model, opened.cache, ids, max_new_tokens=8, min_new_tokens=8)))
            assert (opened.read(NVME) > 0) == (hbm == "12%")
    assert torch.equal(found[0], found[1])
    dense = logits_of(generate(model, stock(model), ids, max_new_tokens=8, min_new_tokens=8))
    torch.testing.assert_close(found[0][0], dense[0], atol=0.3, rtol=0)  # of logits up to 6, in 8 bits


def test_each_call_agrees_with_a_dense_twin_after_cropping_and_rearranging(tmp_path):
    with live(on_gpu("gemma3_text"), tmp_path, context=160, rows=3, hbm="25%", dram="20%") as opened:
        pair = Pair(opened)
        ids = ids_of(2, 90).to(GPU)
        pair.forward(ids[:, :70])
        pair.forward(ids[:, 70:71])
        pair.crop(6)
        pair.forward(ids[:, 65:72])
        pair.rearrange([1, 0, 1])
        pair.forward(ids[[1, 0, 1], 72:73])
        adds_up(opened)


# ── selective reading and sessions ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("selector", ["outlier_mean:read_fraction=0.3", "key_bound:read_fraction=0.3", RERANKED])
def test_a_selective_run_does_not_depend_on_where_blocks_are(tmp_path, selector):
    model, ids, split = on_gpu("llama"), ids_of(1, 240), selector == RERANKED
    found = []
    for hbm in ("100%", "60%" if split else "15%"):
        with live(
            model, tmp_path / hbm, context=260, hbm=hbm, selective=True, selector=selector, split=split
        ) as opened:  # fmt: skip
            found.append(logits_of(generate(model, opened.cache, ids, max_new_tokens=12, min_new_tokens=12)))
            assert (opened.store.disk.read_units.get("demand", 0) > 0) == (hbm != "100%")
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("selector", [None, RERANKED])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_parked_session_goes_on_with_the_same_tokens(tmp_path, family, selector):
    model, prompt, selective = on_gpu(family), ids_of(1, 121)[0].tolist(), selector is not None
    options = {"context": 160, "hbm": "70%", "selective": selective, "selector": selector, "split": selective}
    options["fingerprint"] = fingerprint(model, layout_of(model)._replace(split=selective))
    with live(model, tmp_path / "whole", **options) as opened:
        session = Session(model, opened.store, selective=selective, chunk=48)
        expected = session.run(6, prompt), session.run(6)
    with live(model, tmp_path / "parked", **options) as opened:
        session = Session(model, opened.store, id="s", selective=selective, chunk=48)
        assert session.run(6, prompt) == expected[0]
        session.park()
    with live(model, tmp_path / "parked", **options) as opened:
        session = Session.resume(model, opened.store, "s", selective=selective, chunk=48)
        assert session.run(6) == expected[1]
        assert not session.notices


def test_what_a_gpu_parked_a_cpu_resumes(tmp_path):
    prompt = ids_of(1, 121)[0].tolist()
    name = fingerprint(tiny("llama"), layout_of(tiny("llama")))
    with live(on_gpu("llama"), tmp_path, context=160, hbm="50%", fingerprint=name) as opened:
        session = Session(on_gpu("llama"), opened.store, id="s", chunk=48)
        session.run(6, prompt)
        session.park()
        expected = session.run(6)
    with live(tiny("llama"), tmp_path, context=160, hbm="50%", fingerprint=name) as opened:
        assert Session.resume(tiny("llama"), opened.store, "s", chunk=48).run(6) == expected
