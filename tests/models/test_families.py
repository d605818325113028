"""One realistic config a family, key by key: what its layers keep, what it cannot do without, what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.core import LayerKV
from kvpager.errors import ModelError
from kvpager.models import builtin, builtin_config, builtin_names
from kvpager.models.base import _NEEDS, MODELS, geometry_of

EXAMPLE = {
    "cohere2": "command-r7b", "deepseek_v3": "deepseek-v3", "deepseek_v32": "deepseek-v3.2", "glm_moe_dsa": "glm-5.2",
    "deepseek_v4": "deepseek-v4-flash", "kimi_k2": "kimi-k2", "falcon": "falcon-7b", "gemma3_text": "gemma-3-27b",
    "gemma3n_text": "gemma-3n-e4b", "gemma4_text": "gemma-4-26b-a4b", "gpt_oss": "gpt-oss-20b", "jamba": "jamba-v0.1",
    "kimi_linear": "kimi-k3", "llama": "llama-3.1-8b", "llama4_text": "llama-4-scout", "mimo_v2_flash": "mimo-v2-flash",
    "minimax_m2": "minimax-m2.5", "minimax_m3": "minimax-m3", "mistral": "mistral-7b-v0.1", "mixtral": "mixtral-8x7b",
    "nemotron-nas": "llama-3.3-nemotron-super-49b", "nemotron_h": "nemotron-3-nano-30b-a3b", "phi3": "phi-4",
    "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "qwen3_moe": "qwen3-30b-a3b", "qwen3_next": "qwen3-next-80b-a3b",
    "qwen3_5_text": "qwen3.5-27b", "qwen3_5_moe_text": "qwen3.5-35b-a3b",
}  # fmt: skip
"""A built-in model of each family whose config is published or remembered."""

ALIKE = {
    "deepseek_v2": "deepseek-v3", "gemma2": None, "gemma3": "gemma-3-27b", "gemma4": "gemma-4-26b-a4b",
    "qwen3_vl_text": "qwen3-8b", "qwen3_vl_moe_text": "qwen3-30b-a3b",
}  # fmt: skip
"""Further names of a family; test_geometry.py has a config of Gemma 2."""


def test_every_family_has_an_example():
    assert set(MODELS) == set(EXAMPLE) | set(ALIKE)
    for model_type, name in EXAMPLE.items():
        assert builtin_config(name)["model_type"] == model_type


@pytest.mark.parametrize("model_type", [name for name, example in ALIKE.items() if example])
def test_a_second_name_means_the_same_layers(model_type):
    config = builtin_config(ALIKE[model_type])
    assert geometry_of(config | {"model_type": model_type}, "m").layers == geometry_of(config, "m").layers


@pytest.mark.parametrize("name", builtin_names())
def test_the_family_is_a_registered_name(name):
    assert builtin(name).family in MODELS


list(MODELS)  # finds every family file, and with it what each needs
CASES = [(key, model_type) for key, model_types in sorted(_NEEDS.items()) for model_type in sorted(model_types)]


@pytest.mark.parametrize(("key", "model_type"), [case for case in CASES if case[1] in EXAMPLE])
def test_a_missing_key_is_named_with_the_families_that_need_it(key, model_type):
    config = builtin_config(EXAMPLE[model_type])
    assert key in config
    with pytest.raises(ModelError, match=f"no '{key}'") as caught:
        geometry_of({name: value for name, value in config.items() if name != key}, "cut-model")
    assert model_type in str(caught.value).split("cannot do without")[0]
    assert "cut-model" in str(caught.value)


@pytest.mark.parametrize("model_type", sorted(EXAMPLE))
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_what_every_family_needs(model_type, key):
    """Latent attention has no use for the hidden size, and a list of layers gives their number; Gemma has defaults."""
    spare = {
        "hidden_size": {"deepseek", "glm", "kimi", "mimo"},
        "num_hidden_layers": {"nemotron_h"},
        "num_attention_heads": {"gemma3n", "gemma4"},
    }
    config = {name: value for name, value in builtin_config(EXAMPLE[model_type]).items() if name != key}
    if any(model_type.startswith(start) for start in spare[key]):
        assert geometry_of(config, "m").layers
    else:
        with pytest.raises(ModelError, match=f"{key}|query heads do not divide"):  # Gemma 3's default does not suit the 27B
            geometry_of(config, "m")


def test_latent_attention_keeps_one_vector_for_all_heads():
    assert set(builtin("deepseek-v3").layers) == {LayerKV(1, 576, 0, latent=True)}


def test_an_indexer_adds_its_key_and_a_sharing_one_none():
    assert set(builtin("deepseek-v3.2").layers) == {LayerKV(1, 576, 0, latent=True, index_dim=128)}
    assert [layer.index_dim for layer in builtin("glm-5.2").layers].count(128) == 21
    assert [layer.index_dim for layer in builtin("minimax-m3").layers] == [0] * 3 + [128] * 57


def test_deepseek_v4_keeps_window_entries_and_index_by_ratio():
    kept = {layer.entry_tokens: layer for layer in builtin("deepseek-v4-flash").layers}
    assert kept[1] == LayerKV(1, 512, 0, 128, latent=True)
    assert kept[4] == LayerKV(1, 512, 0, 128, latent=True, index_dim=128, compressed_dim=512, entry_tokens=4)
    assert kept[128] == LayerKV(1, 512, 0, 128, latent=True, compressed_dim=512, entry_tokens=128)
    assert builtin("deepseek-v4-flash").full_layers == ()


def test_sharing_layers_read_the_last_keeper_of_their_kind():
    layers = builtin("gemma-3n-e4b").layers
    assert [layer.shares_layer for layer in layers] == [None] * 20 + [18 if (i + 1) % 5 else 19 for i in range(20, 35)]
    assert all(layers[layer.shares_layer].window_tokens == layer.window_tokens for layer in layers[20:])
    assert builtin("gemma-3n-e4b").full_layers == (4, 9, 14, 19)


def test_full_and_sliding_layers_may_differ_in_shape():
    assert builtin("gemma-4-26b-a4b").layers[4:6] == (LayerKV(8, 256, 256, 1024), LayerKV(2, 512, 512))
    assert builtin("mimo-v2-flash").layers[:2] == (LayerKV(4, 192, 128), LayerKV(8, 192, 128, 128))


def test_chunked_layers_and_every_fourth_full():
    assert builtin("llama-4-scout").full_layers == tuple(range(3, 48, 4))
    assert builtin("llama-4-scout").layers[0].window_tokens == 8192


def test_layers_may_have_heads_of_their_own_or_no_attention():
    layers = builtin("llama-3.3-nemotron-super-49b").layers
    assert layers[5:7] == (LayerKV(8, 128, 128), LayerKV(0, 0, 0))
    assert sum(bool(layer.num_kv_heads) for layer in layers) == 49


def test_states_cost_the_same_at_any_length():
    conv, recurrent = 3 * (2 * 16 * 128 + 48 * 128), 48 * 128 * 128
    assert builtin("qwen3.5-27b").layers[0] == LayerKV(0, 0, 0, state_bytes=2 * conv + 4 * recurrent, state_heads=48)
    assert builtin("jamba-v0.1").layers[0] == LayerKV(0, 0, 0, state_bytes=2 * (3 * 8192 + 8192 * 16), state_heads=8192)
    assert builtin("kimi-k3").state_bytes == 69 * (3 * 3 * 96 * 128 * 2 + 96 * 128 * 128 * 4)


def test_the_states_dtype_may_be_chosen():
    config = builtin_config("qwen3.5-27b")
    saved = geometry_of(config, "m").state_bytes - geometry_of(config, "m", state_dtype_bytes=2).state_bytes
    assert saved == 48 * 48 * 128 * 128 * 2


def test_falcon_40b_groups_its_heads():
    config = builtin_config("falcon-7b") | {"new_decoder_architecture": True, "num_attention_heads": 128, "hidden_size": 8192}
    assert geometry_of(config | {"num_kv_heads": 8}, "m").layers[0] == LayerKV(8, 64, 64)
    assert geometry_of(builtin_config("falcon-7b") | {"multi_query": False}, "m").layers[0].num_kv_heads == 71


def test_transformers_own_spelling_of_gemma4_is_read():
    config = builtin_config("gemma-4-26b-a4b") | {"per_layer_config": {"5": {"head_dim": 64, "num_key_value_heads": 1}}}
    assert geometry_of(config, "m").layers[5] == LayerKV(1, 64, 64)
    with pytest.raises(ModelError, match="per_layer_config"):
        geometry_of(config | {"per_layer_config": {"5": {"sliding_window": 64}}}, "m")


KDA = {"num_heads": 96, "head_dim": 128}


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("deepseek-v4-flash", {"compress_ratios": [0] * 3}, "compress_ratios"),
        ("deepseek-v4-flash", {"num_key_value_heads": 8}, "several KV heads"),
        ("deepseek-v3", {"sliding_window": 128}, "sliding_window"),
        ("deepseek-v3", {"index_head_dim": 128}, "index_head_dim"),
        ("glm-5.2", {"indexer_types": ["shared"] * 78}, "begin with 'shared'"),
        ("glm-5.2", {"indexer_types": [["full"]] * 78}, "unknown type"),
        ("glm-5.2", {"index_topk_pattern": "FFS"}, "index_topk_pattern"),
        ("mimo-v2-flash", {"attention_chunk_size": 256}, "contradicts sliding_window"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        ("mimo-v2-flash", {"hybrid_layer_pattern": [2] * 48}, "unknown type 2"),
        ("gemma-3n-e4b", {"num_kv_shared_layers": 32}, "leave no layer that keeps"),
        ("gemma-4-26b-a4b", {"use_bidirectional_attention": "all"}, "both directions"),
        ("nemotron-3-nano-30b-a3b", {"num_hidden_layers": 51}, "do not match"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": "M?*"}, "unknown type|do not match"),
        ("nemotron-3-nano-30b-a3b", {"layers_block_type": ["mamba"] * 52}, "contradicts"),
        ("nemotron-3-nano-30b-a3b", {"hybrid_override_pattern": None}, "neither"),
        ("nemotron-3-nano-30b-a3b", {"mamba_ssm_cache_dtype": "fp8"}, "recurrent state"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": [{}] * 80}, "no 'attention'"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": [{"attention": {"n_heads_in_group": 7}}] * 80}, "n_heads_in_group"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": [{"attention": {"window_length": 64}}] * 80}, "window_length"),
        ("jamba-v0.1", {"attn_layer_offset": 8}, "attn_layer_offset"),
        ("kimi-k3", {"linear_attn_config": KDA | {"full_attn_layers": [1], "kda_layers": []}}, "do not make up"),
        ("kimi-k3", {"linear_attn_config": "KDA"}, "not a JSON object"),
        ("kimi-k3", {"linear_attn_config": KDA | {"full_attn_layers": 3, "kda_layers": 4}}, "make up"),
        ("minimax-m3", {"sparse_attention_config": {"sparse_attention_freq": [1] * 3}}, "sparse_attention_freq"),
        ("minimax-m2.5", {"attn_type_list": [0] * 62}, "attn_type_list"),
        ("falcon-7b", {"num_attention_heads": 70}, "divide"),
        ("llama-4-scout", {"layer_types": ["sliding_attention"] * 48}, "unknown type"),
    ],
)  # fmt: skip
def test_contradictions_and_unknown_shapes_are_refused(name, change, reason):
    with pytest.raises(ModelError, match=reason):
        geometry_of(builtin_config(name) | change, "odd-model")


KEYS = sorted(
    {key for name in EXAMPLE.values() for key in builtin_config(name)} - {"model_type"}
    | {"no_rope_layers", "per_layer_config", "layers_block_type", "attention_head_dim", "sliding_window_pattern", "indexer_types"}
)
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=3), st.just({})
)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_odd_value_is_read_or_refused_never_a_crash(data):
    config = builtin_config(data.draw(st.sampled_from(sorted(EXAMPLE.values()))))
    own, foreign = st.sampled_from(sorted(set(config) - {"model_type"})), st.sampled_from(KEYS)
    changed = data.draw(st.dictionaries(own | foreign, ODD, min_size=1, max_size=2))
    try:
        geometry = geometry_of(config | changed, "m")
    except ModelError:
        return
    assert 0 <= geometry.kv_bytes(100) <= geometry.kv_bytes(101)
