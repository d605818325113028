"""One forward call after another: masks, positions, padding, continuing, what is refused, and calls that break off."""

import copy

import pytest
import torch
from tests.live.families import FAMILIES, Pair, adds_up, ends_clean, generate, ids_of, live, stock, stock_twin, tiny, tiny_once
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvpager.core import NVME
from kvpager.errors import BadInput, ModelError
from kvpager.live.transformers import ATTENTION, TieredCache


@pytest.fixture
def pair(tmp_path):
    """Two rows of a tiny model, 12 % of its KV in HBM."""
    with live(tiny_once("qwen3"), tmp_path, context=300, rows=2) as opened:
        yield Pair(opened)
        adds_up(opened)
        ends_clean(opened)


# ── masks ────────────────────────────────────────────────────────────────────────────────────────


def padded(rows, tokens, pads, seed=0):
    ids = ids_of(rows, tokens, seed)
    mask = (torch.arange(tokens) >= torch.tensor(pads)[:, None]).long()
    return ids * mask, mask


def test_pitfall_1_attention_and_mask_function_come_under_one_name():
    assert ATTENTION in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert ATTENTION in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


def test_problem_5_a_mask_function_that_is_missing_is_no_silent_loss_of_causality(pair):
    """Without a mask, several tokens are attended causally all the same."""
    ids = ids_of(1, 40)
    with torch.inference_mode():
        found = pair.cache.model(ids, cache=pair.cache, attention_mask=None).logits
        whole = pair.twin(ids).logits
    torch.testing.assert_close(found, whole, atol=1e-4, rtol=0)


def test_rows_with_different_padding_are_attended_as_each_alone(pair):
    ids, mask = padded(2, 150, (37, 5))
    found = pair.forward(ids, mask)
    pair.forward(ids_of(2, 1, 1))
    for row, pad in enumerate((37, 5)):
        with torch.inference_mode():
            alone = pair.twin(ids[row : row + 1, pad:]).logits
        torch.testing.assert_close(found[row : row + 1, pad:], alone, atol=1e-4, rtol=0)
    assert [row.tokens for row in pair.cache.batch.rows] == [114, 146], "padding is not kept"


def test_problem_4_what_stands_in_the_padding_changes_nothing(tmp_path):
    model = tiny_once("llama")
    ids, mask = padded(2, 120, (30, 0))
    found = []
    for number, junk in enumerate((0, 77)):
        dirty = torch.where(mask.bool(), ids, junk)
        with live(model, tmp_path / str(number), context=140, rows=2) as opened:
            found.append(torch.stack(generate(model, opened.cache, dirty, mask, max_new_tokens=6).logits))
    assert torch.equal(*found)


def test_a_row_that_is_all_padding_in_a_chunk(pair):
    ids, mask = padded(2, 144, (60, 0))
    for start in range(0, 144, 48):
        pair.forward(ids[:, start : start + 48], mask[:, start : start + 48])
    assert [row.tokens for row in pair.cache.batch.rows] == [84, 144]
    for step in range(3):
        pair.forward(ids_of(2, 1, step))


def test_padding_of_single_token_calls(pair):
    ids, mask = padded(2, 9, (6, 0))
    for start in range(9):
        pair.forward(ids[:, start : start + 1], mask[:, start : start + 1])
    pair.forward(ids_of(2, 7, 1))


def refused(opened, ids, mask, words="padding on the left"):
    tokens = opened.cache.tokens
    with torch.inference_mode(), pytest.raises(BadInput, match=words):
        opened.model(ids, attention_mask=mask, cache=opened.cache)
    assert opened.cache.tokens == tokens, "refused calls leave nothing"


@pytest.fixture
def full_pair(tmp_path):
    """The same for a model without sliding layers, which masks of four axes would reach too."""
    with live(tiny_once("llama"), tmp_path, context=300, rows=2) as opened:
        yield Pair(opened)
        ends_clean(opened)


def test_pitfall_10_masks_other_than_causal_with_padding_on_the_left_are_refused(full_pair):
    pair, opened, ids = full_pair, full_pair.opened, ids_of(2, 40)
    right = torch.ones(2, 40, dtype=torch.long)
    right[0, 30:] = 0
    hole = torch.ones(2, 40, dtype=torch.long)
    hole[1, 10:12] = 0
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    packed = causal.clone()
    packed[20:, :20] = False
    both_ways = torch.ones(2, 1, 40, 40, dtype=torch.bool)
    floats = torch.zeros(2, 1, 40, 40).masked_fill(~causal, torch.finfo(torch.float32).min)
    for mask in (right, hole, packed.expand(2, 1, 40, 40), both_ways):
        refused(opened, ids, mask)
    refused(opened, ids, floats, r"torch\.float32.*boolean.*padding on the left")
    pair.forward(ids)  # the cache is as new


def test_pitfall_10_a_mask_that_says_what_causality_says_is_taken(full_pair):
    pair, ids = full_pair, ids_of(2, 40)
    causal = torch.ones(40, 40, dtype=torch.bool).tril().expand(2, 1, 40, 40)
    with torch.inference_mode():
        found = pair.opened.model(ids, attention_mask=causal, cache=pair.cache).logits
        whole = pair.twin(ids).logits
    torch.testing.assert_close(found, whole, atol=1e-4, rtol=0)


def test_a_right_padded_step_is_refused_too(pair):
    pair.forward(ids_of(2, 50))
    mask = torch.ones(2, 53, dtype=torch.long)
    mask[0, 52:] = 0
    refused(pair.opened, ids_of(2, 3), mask)


def test_forgetting_the_mask_of_padded_rows_is_refused(pair):
    pair.forward(*padded(2, 50, (7, 0)))
    refused(pair.opened, ids_of(2, 1), None, "row 0 begins with 7 tokens of padding: pass its attention mask")


# ── positions and continuing ─────────────────────────────────────────────────────────────────────


def test_pitfall_3_a_bare_model_call_keeps_right_positions(pair):
    """The cache's length is what was seen, never what is resident."""
    pair.forward(ids_of(2, 200))
    assert pair.opened.budget.hbm_fraction < 0.13
    for number in (1, 5, 33, 2):
        pair.forward(ids_of(2, number, number))
    assert pair.opened.read(NVME) > 0


def test_pitfall_4_all_full_layers_report_one_length(pair):
    pair.forward(ids_of(2, 77))
    sizes = {pair.cache.get_mask_sizes(3, layer) for layer in (0, 2)}
    assert sizes == {(80, 0)}
    assert {layer.get_seq_length() for layer in pair.cache.layers} == {77}


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_problem_8_a_chat_goes_on_as_if_prefilled_anew(family, tmp_path):
    model = tiny_once(family)
    dialogue = ids_of(1, 90)
    with live(model, tmp_path, context=260) as opened:
        for turn in range(3):
            output = generate(model, opened.cache, dialogue, max_new_tokens=13).sequences
            anew = generate(stock_twin(model), stock(stock_twin(model)), dialogue, max_new_tokens=13).sequences
            assert torch.equal(output, anew), f"turn {turn}"
            dialogue = torch.cat([output, ids_of(1, 21, turn)], 1)
        assert opened.read(NVME) > 0
        adds_up(opened)


@pytest.mark.parametrize("prefix", [1, 3, 4, 63, 64, 65, 130])
def test_problem_11_a_prefix_of_any_length_is_continued(prefix, tmp_path):
    """`generate` feeds only what the cache has not seen, aligned to blocks or not."""
    model = tiny_once("mistral")
    ids = ids_of(1, 140)
    with live(model, tmp_path, context=160) as opened:
        pair = Pair(opened)
        pair.forward(ids[:, :prefix])
        output = generate(model, opened.cache, ids, max_new_tokens=6)
        anew = generate(pair.twin, stock(pair.twin), ids, max_new_tokens=6)
    assert torch.equal(output.sequences, anew.sequences)
    torch.testing.assert_close(torch.stack(output.logits), torch.stack(anew.logits), atol=1e-4, rtol=0)


@pytest.mark.parametrize("cuts", [(3,), (31, 2, 40), (32, 33), (1, 100, 1, 1), (64, 64)])
def test_problem_1_any_cutting_of_the_prompt_gives_the_same(pair, cuts):
    ids, at = ids_of(2, 200), 0
    for cut in cuts:
        pair.forward(ids[:, at : at + cut])
        at += cut
    pair.forward(ids[:, at:])


def test_two_caches_share_a_store_and_not_their_words(tmp_path):
    with live(tiny_once("gemma2"), tmp_path, context=120, rows=2, hbm="20%") as opened:
        pairs = [Pair(opened), Pair(opened, opened.new_cache())]
        for turn, tokens in enumerate((60, 1, 1, 5, 40, 1)):
            for number, pair in enumerate(pairs):
                pair.forward(ids_of(1, tokens, 10 * turn + number))
        adds_up(opened)
        ends_clean(opened)


# ── cropping ─────────────────────────────────────────────────────────────────────────────────────


def test_pitfall_5_crop_of_nothing_touches_nothing(pair):
    pair.forward(ids_of(2, 60))
    moves, step = len(pair.opened.store.driver.log), pair.opened.store.step
    for _ in range(50):
        pair.crop(0)
    assert len(pair.opened.store.driver.log) == moves
    assert pair.opened.store.step == step


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 30, 101, 150])
def test_pitfall_5_cropping_into_sealed_blocks(tmp_path, tokens):
    """A cut block comes back from wherever it is, and is another one from then on."""
    with live(tiny_once("llama"), tmp_path, context=300, rows=2) as opened:
        pair = Pair(opened)
        pair.forward(ids_of(2, 151))
        pair.forward(ids_of(2, 1, 1))
        old = [row.bases.copy() for row in pair.cache.batch.rows]
        pair.crop(tokens)
        assert all(set(row.bases[:-1]) <= set(bases) for row, bases in zip(pair.cache.batch.rows, old, strict=True))
        pair.forward(ids_of(2, 40, 2))
        pair.forward(ids_of(2, 1, 3))
        adds_up(opened)
        ends_clean(opened)


def test_cropping_to_nothing_and_past_the_start(pair):
    pair.forward(ids_of(2, 20))
    with pytest.raises(BadInput, match="a cache of 20 tokens cannot be cropped by 21: crop by 20 at most"):
        pair.cache.crop(-21)
    with pytest.raises(BadInput, match="negative"):
        pair.cache.crop(3)
    pair.crop(20)
    pair.forward(ids_of(2, 45, 1))


def test_cropping_into_the_padding_leaves_an_empty_row(pair):
    pair.forward(*padded(2, 50, (44, 0)))
    pair.crop(10)
    assert [row.tokens for row in pair.cache.batch.rows] == [0, 40]
    pair.forward(ids_of(2, 37, 1))
    pair.forward(ids_of(2, 1, 2))


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def fresh(tmp_path, **options):
    return live(tiny("llama"), tmp_path, context=80, hbm="60%", **options)


def test_another_attention_implementation_cannot_run_over_tiers(tmp_path):
    with fresh(tmp_path) as opened, torch.inference_mode():
        opened.model.set_attn_implementation("sdpa")
        with pytest.raises(ModelError, match=r"'sdpa' now.*set_attn_implementation\('kvpager'\)"):
            opened.model(ids_of(1, 8), cache=opened.cache)
        with pytest.raises(RuntimeError, match="meta"):  # another model, which the cache cannot ask
            stock_twin(opened.model)(ids_of(1, 8), cache=TieredCache(opened.model, opened.store))


def test_training_and_gradients_are_refused(tmp_path):
    with fresh(tmp_path) as opened:
        with pytest.raises(ModelError, match="no gradients"):
            opened.model(ids_of(1, 8), cache=opened.cache)
        opened.model.train()
        with torch.inference_mode(), pytest.raises(ModelError, match=r"model\.eval\(\)"):
            opened.model(ids_of(1, 8), cache=opened.cache)


@pytest.mark.long  # Dynamo takes long to load
@pytest.mark.parametrize("how", ["wrapped", "in place"])
@pytest.mark.filterwarnings("ignore")  # Dynamo's own
def test_pitfall_8_a_compiled_model_is_refused(how, tmp_path):
    with fresh(tmp_path) as opened, torch.inference_mode():
        assert not opened.cache.is_compileable, "so `generate` does not compile on its own"
        model = opened.model
        if how == "wrapped":
            model = torch.compile(model, backend="eager")
        else:
            model.compile(backend="eager")
        with pytest.raises(ModelError, match=r"without torch\.compile"):
            model(ids_of(1, 8), cache=opened.cache)
    torch.compiler.reset()


def test_pitfall_8_code_under_compilation_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with fresh(tmp_path) as opened, torch.inference_mode(), pytest.raises(ModelError, match=r"without torch\.compile"):
        opened.model(ids_of(1, 8), cache=opened.cache)


def test_static_caches_and_continuous_batching_are_refused(tmp_path):
    with fresh(tmp_path) as opened:
        for kind in ("static", "paged"):
            with pytest.raises(ValueError, match=r"cache_implementation|continuous batching"):
                opened.model.generate(ids_of(1, 8), cache=opened.cache, cache_implementation=kind, max_new_tokens=2)
        assert opened.cache.tokens == 0


def test_a_model_elsewhere_than_its_store_is_refused(tmp_path):
    with fresh(tmp_path) as opened, torch.inference_mode():
        elsewhere = copy.deepcopy(opened.model).to("meta")
        cache = TieredCache(elsewhere, opened.store)
        with pytest.raises(ModelError, match="are on meta, and the store was opened for cpu"):
            elsewhere(ids_of(1, 8).to("meta"), cache=cache)


def test_models_that_do_not_fit_the_store_are_refused(tmp_path):
    with fresh(tmp_path) as opened:
        with pytest.raises(ModelError, match=r"full attention in layers \[0, 2\], the store was opened for \[0, 1, 2\]"):
            TieredCache(tiny("qwen2"), opened.store)
        with pytest.raises(BadInput, match="needs a selector"):
            TieredCache(opened.model, opened.store, selective=True)


def test_another_number_of_rows_is_refused(pair):
    pair.forward(ids_of(2, 20))
    with torch.inference_mode(), pytest.raises(Exception, match="a call of 1 rows over a cache of 2"):
        pair.opened.model(ids_of(1, 1), cache=pair.cache)
    pair.forward(ids_of(2, 1, 1))


# ── calls that break off ─────────────────────────────────────────────────────────────────────────


class Broken(Exception):
    pass


def break_off(pair, at, ids, where="pre"):
    """Run a forward call that fails at decoder layer `at`; `where` = before it, or after it."""

    def fail(*_):
        raise Broken

    layer = pair.opened.model.model.layers[at]
    hook = layer.register_forward_pre_hook(fail) if where == "pre" else layer.register_forward_hook(fail)
    try:
        with torch.inference_mode(), pytest.raises(Broken):
            pair.opened.model(ids, cache=pair.cache)
    finally:
        hook.remove()


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
@pytest.mark.parametrize("tokens", [1, 6, 50])
def test_a_call_that_breaks_off_anywhere_leaves_nothing(family, tokens, tmp_path):
    """Gemma 3's last layer slides here: the call is not over when its last tiered layer is."""
    model = tiny_once(family)
    with live(model, tmp_path, context=330, rows=1, hbm="20%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 70))
        for at in range(1, model.config.num_hidden_layers):
            break_off(pair, at, ids_of(1, tokens, at))
            assert pair.cache.get_seq_length() == 70 + at - 1
            pair.forward(ids_of(1, 1, at))
        break_off(pair, 0, ids_of(1, tokens, 9), "after")
        pair.crop(3)
        break_off(pair, 1, ids_of(1, tokens, 10), "after")
        pair.rearrange([0, 0])
        pair.forward(ids_of(2, 3))
        adds_up(opened)
        ends_clean(opened)


def test_a_first_call_that_breaks_off_leaves_no_rows(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=100, rows=3, hbm="50%") as opened:
        pair = Pair(opened)
        break_off(pair, 1, ids_of(3, 20))
        pair.forward(ids_of(2, 30))
        ends_clean(opened)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("more", [34, 20, 1])
def test_a_fork_after_a_call_that_filled_an_open_block_and_more(family, more, tmp_path):
    """The block that was open before that call is full, but not sealed; those behind it are. A copy of it would not ascend."""
    with live(tiny_once(family), tmp_path, context=110, rows=3, hbm="60%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 9))
        pair.forward(ids_of(1, 33, 1))
        pair.both("batch_repeat_interleave", 3)
        pair.mask = pair.mask.repeat_interleave(3, 0)
        table, rows = opened.store.table, pair.cache.batch.rows
        assert all(row.bases[: row.tokens // table.block_size].tolist() == rows[0].bases[:-1].tolist() for row in rows)
        pair.forward(ids_of(3, more, 2))
        pair.crop(more + 3)
        pair.forward(ids_of(3, 2, 3))
        adds_up(opened)
        ends_clean(opened)
