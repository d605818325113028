"""What is recorded equals a slow, obvious reference; what is decoded equals transformers without us."""

import argparse
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, DynamicCache
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from kvpager.errors import ModelError
from kvpager.live.transformers import ATTENTION, RecordingDecoder, load_model
from kvpager.live.transformers import recording as live
from kvpager.traces.attention import read_recording
from kvpager.traces.locality import SPLITS, locality_ranges
from kvpager.traces.recorder import record

CONTEXT, STEPS, BLOCK = 93, 20, 16
HALF = {"rtol": 2**-10, "atol": 2e-7}


def eager_attentions(model, tokens):
    """Attention probabilities of every layer, by transformers' eager attention over the whole sequence at once."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([tokens]), output_attentions=True, use_cache=False)
    return [attention[0].double().numpy() for attention in out.attentions]


def queries_and_keys(model, tokens):
    """Queries and keys (after RoPE) and scaling of every layer, caught by an attention function of the test's own."""
    caught = {}

    def catch(module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
        caught[module.layer_idx] = (query[0].double().numpy(), key[0].double().numpy(), scaling)
        group = query.shape[1] // key.shape[1]
        logits = query @ key.repeat_interleave(group, 1).transpose(2, 3) * scaling
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        output = (logits + attention_mask).softmax(-1) @ value.repeat_interleave(group, 1)
        return output.transpose(1, 2).contiguous(), None

    AttentionInterface.register("catch", catch)
    AttentionMaskInterface.register("catch", eager_mask)
    model.set_attn_implementation("catch")
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    return caught


def folded_blocks(row, group):
    """Token probabilities [q_heads, n] to KV head mass [kv_heads, blocks], by loops."""
    heads, tokens = row.shape
    mass = np.zeros((heads // group, -(-tokens // BLOCK)))
    for head in range(heads):
        for token in range(tokens):
            mass[head // group, token // BLOCK] += row[head, token] / group
    return mass


@pytest.fixture(params=["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"])
def case(request, make_tiny, make_loaded, tmp_path, monkeypatch):
    """A recording of a tiny model over random tokens, in prefill slices shorter than the sliding window's reach."""
    monkeypatch.setattr(live, "_PREFILL_TOKENS", 20)
    model = make_tiny(request.param)
    tokens = np.random.default_rng(1).integers(3, 199, CONTEXT + STEPS).tolist()
    path = record(RecordingDecoder(make_loaded(model), block_size=BLOCK), tokens, out=tmp_path / "t.zarr", steps=STEPS)
    return model, tokens, read_recording(path)


def test_mass_and_locality_equal_eager_attention(case):
    model, tokens, recording = case
    attentions = eager_attentions(model, tokens)
    assert recording.header.layers == tuple(
        layer for layer, window in enumerate(recording.header.geometry.layers) if window.window_tokens is None
    )
    for slot, layer in enumerate(recording.header.layers):
        for query in range(32):
            row = attentions[layer][:, CONTEXT - 32 + query, : CONTEXT - 32 + query + 1]
            expected = folded_blocks(row, group=3)
            got = recording.prefill_mass[query, slot]
            np.testing.assert_allclose(got[:, : expected.shape[1]], expected, **HALF)
            assert (got[:, expected.shape[1] :] == 0).all()
        for step in range(STEPS):
            row = attentions[layer][:, CONTEXT + step, : CONTEXT + step + 1]
            expected = folded_blocks(row, group=3)
            got = recording.mass[step, slot]
            np.testing.assert_allclose(got[:, : expected.shape[1]], expected, **HALF)
            assert (got[:, expected.shape[1] :] == 0).all()
            ranges = [row[:, first:after].sum(1) for first, after in zip(*locality_ranges(CONTEXT + step + 1), strict=True)]
            for name, part in zip(("special", "relative", "absolute"), np.split(np.stack(ranges, 1), SPLITS, 1), strict=True):
                np.testing.assert_allclose(getattr(recording, name)[step, slot], part, err_msg=name, **HALF)


def test_bounds_and_query_cosine_equal_their_definition(case):
    model, tokens, recording = case
    caught = queries_and_keys(model, tokens)
    for slot, layer in enumerate(recording.header.layers):
        query, key, scaling = caught[layer]
        for step in range(STEPS):
            now = CONTEXT + step
            for head in range(2):
                group = query[3 * head : 3 * head + 3, now] * scaling
                for block in range(recording.blocks):
                    rows = key[head, block * BLOCK : min((block + 1) * BLOCK, now + 1)]
                    got = recording.bound[step, slot, head, block]
                    if not len(rows):
                        assert got == -np.inf
                        continue
                    bound = np.maximum(group * rows.min(0), group * rows.max(0)).sum(1).mean()
                    np.testing.assert_allclose(got, bound, rtol=2**-10, atol=1e-4)
                    assert bound >= (group @ rows.T).max(1).mean() - 1e-9
            before, after = query[:, now - 1], query[:, now]
            cosine = (before * after).sum(1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
            np.testing.assert_allclose(recording.query_cosine[step, slot], cosine, rtol=2**-10, atol=1e-5)


def plain_tokens(model, prompt, steps):
    """Greedy decoding by transformers alone: DynamicCache and sdpa (eager where a softcap rules sdpa out)."""
    softcap = getattr(model.config, "attn_logit_softcapping", None)
    model.set_attn_implementation("sdpa" if softcap is None else "eager")
    cache, chosen, ids = DynamicCache(config=model.config), [], torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(steps):
            ids = model(input_ids=ids, cache=cache).logits[:, -1:].argmax(-1)
            chosen.append(int(ids))
    return chosen


def recorded_tokens(decoder, prompt, steps):
    """Greedy decoding while recording."""
    chosen = [decoder.prefill(prompt, lambda *what: None)[1]]
    while len(chosen) < steps:
        chosen.append(decoder.step(chosen[-1])[1])
    return chosen


@pytest.mark.parametrize("length", [1, 32, 80])
def test_decoded_tokens_equal_those_of_transformers_alone(family, make_tiny, make_loaded, monkeypatch, length):
    monkeypatch.setattr(live, "_PREFILL_TOKENS", 20)
    model = make_tiny(family)
    prompt = np.random.default_rng(2).integers(3, 199, length).tolist()
    expected = plain_tokens(model, prompt, 16)
    decoder = RecordingDecoder(make_loaded(model))
    assert recorded_tokens(decoder, prompt, 16) == expected
    assert recorded_tokens(decoder, prompt, 16) == expected, "a decoder can be used again"


def test_unwatched_calls_of_a_padded_batch_are_unharmed(family, make_tiny):
    model = make_tiny(family)
    ids = torch.randint(3, 199, (2, 60), generator=torch.Generator().manual_seed(3))
    seen = torch.ones_like(ids)
    seen[0, :17] = 0
    results = []
    for implementation in ("eager", ATTENTION):
        model.set_attn_implementation(implementation)
        results.append(model.generate(ids, attention_mask=seen, max_new_tokens=16, min_new_tokens=16, do_sample=False))
    assert torch.equal(*results)


def test_model_without_full_attention_is_refused(make_tiny, make_loaded):
    with pytest.raises(ModelError, match="sliding-window layers only"):
        RecordingDecoder(make_loaded(make_tiny("mistral", sliding_window=24)))


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2")


def test_real_weights_equal_eager_attention_and_plain_tokens(smollm2, tmp_path):
    tokens = smollm2.tokenize(Path(argparse.__file__).read_text(encoding="utf-8"))[:204]
    assert smollm2.geometry.kv_bytes_per_token == 2 * 23_040, "float32, as it runs"
    decoder = RecordingDecoder(smollm2)
    recording = read_recording(record(decoder, tokens, out=tmp_path / "t.zarr", steps=4))
    assert recording.header.context_tokens == 200
    decoded = recorded_tokens(decoder, tokens[:100], 8)
    attentions = eager_attentions(smollm2.model, tokens)
    for step in range(4):
        for layer in range(30):
            expected = folded_blocks(attentions[layer][:, 200 + step, : 201 + step], group=3)
            np.testing.assert_allclose(recording.mass[step, layer], expected, rtol=2e-3, atol=2e-5)
    assert decoded == plain_tokens(smollm2.model, tokens[:100], 8)
