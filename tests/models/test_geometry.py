"""Golden sizes, agreement with transformers' own reading of a config, and what is refused."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import ModelError
from kvpager.models import builtin, builtin_names
from kvpager.models.base import MODELS, geometry_of, load_config

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B = LLAMA_8B | {"num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
SMOLLM2 = LLAMA_8B | {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}
QWEN3_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 36, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_06B = QWEN3_8B | {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16}
GEMMA3_27B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"num_attention_heads": 16},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
    },
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
}  # fmt: skip
TINY = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [(LLAMA_8B, 131_072), (LLAMA_70B, 327_680), (SMOLLM2, 23_040), (QWEN3_8B, 147_456), (QWEN3_06B, 114_688)],
)
def test_golden_bytes_per_token(config, bytes_per_token):
    assert geometry_of(config, "m").kv_bytes_per_token == bytes_per_token


def test_head_dim_may_exceed_hidden_size_by_heads():
    assert geometry_of(QWEN3_06B, "m").layers[0] == LayerKV(8, 128, 128)


def test_gemma3_has_ten_full_layers_and_its_windows_stop_growing():
    geometry = geometry_of(GEMMA3_27B, "m")
    assert geometry.family == "gemma3"
    assert geometry.full_layers == (5, 11, 17, 23, 29, 35, 41, 47, 53, 59)
    per_layer = 2 * 16 * 256
    assert geometry.kv_bytes(8192) == per_layer * (10 * 8192 + 52 * 1024)


def test_gemma3_4b_leaves_its_heads_to_the_defaults():
    assert geometry_of(GEMMA3_4B, "m").num_q_heads == 8
    assert geometry_of(GEMMA3_4B, "m").layers[5] == LayerKV(4, 256, 256)


def test_gemma2_alternates_and_starts_sliding():
    assert geometry_of(TINY | {"model_type": "gemma2"}, "m").full_layers == (1, 3)


def test_qwen_slides_from_max_window_layers_on():
    config = TINY | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 3}
    assert [layer.window_tokens for layer in geometry_of(config, "m").layers] == [None, None, None, 32]


def test_mistral_slides_unless_told_otherwise():
    assert geometry_of(TINY | {"model_type": "mistral"}, "m").full_layers == ()
    assert len(geometry_of(TINY | {"model_type": "mistral", "sliding_window": None}, "m").full_layers) == 4


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("torch.bfloat16", 2), (None, 2)])
def test_dtype_sets_the_element_size(dtype, size):
    assert geometry_of(LLAMA_8B | {"torch_dtype": dtype}, "m").dtype_bytes == size
    assert geometry_of(LLAMA_8B | {"torch_dtype": "float32"}, "m", dtype_bytes=1).dtype_bytes == 1


FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt_oss", "mixtral", "cohere2", "llama4_text"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_agrees_with_transformers_on_any_config_of_a_known_family(data):
    from transformers import AutoConfig
    from transformers.cache_utils import get_layer_types_and_kwargs

    family = data.draw(st.sampled_from(FAMILIES))
    heads = data.draw(st.sampled_from([8, 16, 32]))
    layers = data.draw(st.integers(1, 9))
    config = {
        "num_hidden_layers": layers,
        "hidden_size": heads * data.draw(st.sampled_from([8, 64])),
        "num_attention_heads": heads,
    }
    optional = {
        "num_key_value_heads": st.sampled_from([1, 2, 4, 8]),
        "head_dim": st.sampled_from([16, 128, 256]),
        "sliding_window": st.integers(2, 5000),
    }
    if family.startswith("qwen"):
        optional |= {"use_sliding_window": st.booleans(), "max_window_layers": st.integers(0, 10)}
    if family == "llama4_text":
        optional = optional | {"attention_chunk_size": st.integers(2, 5000), "no_rope_layer_interval": st.integers(1, 5)}
        del optional["sliding_window"]
    if family == "gemma3_text":
        optional |= {"sliding_window_pattern": st.integers(1, 7)}
    if family != "llama":
        for key in data.draw(st.sets(st.sampled_from(sorted(optional)))):
            config[key] = data.draw(optional[key])
    theirs = AutoConfig.for_model(family, **config)
    if heads % theirs.num_key_value_heads:
        with pytest.raises(ModelError, match="do not divide"):
            geometry_of(config | {"model_type": family}, "m")
        return
    ours = geometry_of(config | {"model_type": family}, "m")
    kinds, options = get_layer_types_and_kwargs(theirs)
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // heads
    assert ours.num_q_heads == theirs.num_attention_heads
    assert ours.layers == tuple(
        LayerKV(theirs.num_key_value_heads, head_dim, head_dim, None if kind == "full_attention" else option["sliding_window"])
        for kind, option in zip(kinds, options, strict=True)
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "megalodon"}, "unknown"),
        ({"model_type": None}, "unknown"),
        ({"model_type": ["llama"]}, "unknown"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_attention_heads": -4}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 4100}, "head_dim"),
        ({"kv_sharing_modes": ["own", "reuse"]}, "kv_sharing_modes"),
        ({"num_kv_shared_layers": 20}, "num_kv_shared_layers"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"per_layer_config": {"0": {"head_dim": 64}}}, "per_layer_config"),
        ({"model_type": "falcon", "sliding_window": 512}, "sliding_window"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 32, "sliding_window": 64}, "sliding"),
        ({"torch_dtype": "float4"}, "float4"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 32}, "use_sliding_window"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "mistral", "sliding_window": 64, "layer_types": ["full_attention"] * 32}, "contradict"),
    ],
)
def test_refuses_what_it_does_not_know_with_reason_and_known_families(change, reason):
    with pytest.raises(ModelError, match=reason) as caught:
        geometry_of(LLAMA_8B | change, "odd-model")
    assert "odd-model" in str(caught.value)
    assert all(family in str(caught.value) for family in ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"))


def test_empty_keys_that_speak_of_the_cache_are_harmless():
    harmless = {
        "cross_attention_hidden_size": None,
        "add_cross_attention": False,
        "chunk_size_feed_forward": 0,
        "is_encoder_decoder": False,
    }
    assert geometry_of(LLAMA_8B | harmless, "m").kv_bytes_per_token == 131_072


def test_every_kind_of_layer_survives_a_recordings_header():
    for name in builtin_names():
        written = json.loads(json.dumps(asdict(builtin(name))))
        layers = tuple(LayerKV(**layer) for layer in written.pop("layers"))
        assert KVGeometry(layers=layers, **written) == builtin(name)


def test_registry_holds_the_six_families():
    assert {"llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3"} <= set(MODELS)


def test_load_config_takes_file_or_directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert load_config(tmp_path) == load_config(tmp_path / "config.json") == LLAMA_8B


@pytest.mark.parametrize("content", [None, "{", "[1]", b"\xff\xfe"])
def test_load_config_refuses_what_is_no_config(tmp_path, content):
    if isinstance(content, bytes):
        (tmp_path / "config.json").write_bytes(content)
    elif content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_config(tmp_path)
