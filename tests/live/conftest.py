"""Tiny random models of every family, and a slow, obvious account of what their attention reads."""

import pytest

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")

_TINY = {
    "vocab_size": 199, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "initializer_range": 0.3,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_SLIDING = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}
_OWN = {
    "llama": {},
    "qwen2": _SLIDING,
    "qwen3": _SLIDING,
    "mistral": {"sliding_window": None},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 16, "sliding_window_pattern": 2},
}


def tiny_model(family, seed=0, **changes):
    """A random float32 model; Qwen and Gemma mix sliding and full layers, Gemma 2 caps its logits hard."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **(_TINY | _OWN[family] | changes))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def loaded(model, name="tiny"):
    """The model as `load_model` would give it, without a tokenizer."""
    from kvpager.live.transformers import LoadedModel
    from kvpager.models.base import geometry_of

    return LoadedModel(model, None, name, geometry_of(model.config.to_dict(), name), "0" * 64)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def make_tiny():
    return tiny_model


@pytest.fixture
def make_loaded():
    return loaded
