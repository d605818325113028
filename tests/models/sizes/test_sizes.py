"""Dtypes with their scales, ranks, engine rules: golden numbers, and laws that hold for every built-in model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import BadInput, ModelError, UnknownName
from kvpager.models import builtin, builtin_names
from kvpager.models.sizes import (
    KV_DTYPES,
    RULES,
    architectural_bytes,
    engine_reserved_bytes,
    growth,
    kv_dtype,
    rank_geometries,
    rule_of,
    stage_layers,
)

NAMES = st.sampled_from(builtin_names())
DTYPES = st.sampled_from(sorted(KV_DTYPES))


@pytest.mark.parametrize(
    ("name", "vector_of_128"),
    [
        ("fp32", 512), ("bf16", 256), ("fp16", 256), ("fp8", 128), ("fp8-token-head", 132), ("int8", 132), ("int8-g32", 136),
        ("fp8-g128", 132), ("int4", 72), ("int4-g32", 72), ("int4-g128", 68), ("nvfp4", 72),
    ],
)  # fmt: skip
def test_bytes_of_a_head_vector(name, vector_of_128):
    assert kv_dtype(name).vector_bytes(128) == vector_of_128
    assert kv_dtype(name).vector_bytes(0) == 0


def test_every_dtype_has_a_golden_number_and_a_source():
    assert len(KV_DTYPES) == 12
    assert all(dtype.source for dtype in KV_DTYPES.values())


def test_odd_vectors_round_up_to_bytes_and_groups():
    assert kv_dtype("int4").vector_bytes(65) == 33 + 2 * 4


def test_unknown_dtype_lists_near_ones():
    with pytest.raises(UnknownName, match="fp8"):
        kv_dtype("fp9")


def test_llama_70b_in_every_usual_dtype():
    geometry = builtin("llama-3.1-70b")
    sizes = {name: architectural_bytes(geometry, 1, kv_dtype(name)) for name in ("bf16", "fp8", "int8", "int4")}
    assert sizes == {"bf16": 327_680, "fp8": 163_840, "int8": 168_960, "int4": 92_160}


def test_the_indexer_may_have_a_dtype_of_its_own():
    geometry = builtin("deepseek-v3.2")
    assert architectural_bytes(geometry, 1, kv_dtype("bf16"), kv_dtype("fp8-g128")) == 61 * (576 * 2 + 132)
    assert architectural_bytes(geometry, 1, kv_dtype("fp8")) == 61 * (576 + 128)


def test_states_keep_their_dtype_whatever_the_kv_has():
    geometry = builtin("qwen3.5-27b")
    assert architectural_bytes(geometry, 100, kv_dtype("fp8")) == 100 * 32_768 + 153_944_064


@settings(max_examples=60, deadline=None)
@given(NAMES, st.integers(0, 300_000))
def test_the_two_ways_to_count_agree(name, tokens):
    geometry = builtin(name)
    assert architectural_bytes(geometry, tokens) == geometry.kv_bytes(tokens)


@settings(max_examples=30, deadline=None)
@given(NAMES, DTYPES)
def test_arrays_give_what_numbers_give(name, dtype):
    tokens = np.array([1, 15, 16, 17, 127, 128, 4096, 131_072, 1_000_000])
    geometry, kv = builtin(name), kv_dtype(dtype)
    assert architectural_bytes(geometry, tokens, kv).tolist() == [architectural_bytes(geometry, int(n), kv) for n in tokens]
    assert engine_reserved_bytes(geometry, tokens, kv=kv).tolist() == [
        engine_reserved_bytes(geometry, int(n), kv=kv) for n in tokens
    ]


def reserved(name, tokens, rule, **options):
    return engine_reserved_bytes(builtin(name), tokens, rule=rule, **options)


@pytest.mark.parametrize(
    ("name", "rule", "tokens", "expected"),
    [
        # Whole blocks: 100 tokens take 7 blocks of 16.
        ("llama-3.1-8b", "paged", 100, 112 * 131_072),
        ("llama-3.1-8b", "vllm-hybrid", 100, 112 * 131_072),
        # The engine's own 73,728 B a token where windows are charged as full attention.
        ("gpt-oss-120b", "vllm-full", 131_072, 131_072 * 73_728),
        # Two groups of 18 layers; a window of 128 touches up to 9 blocks.
        ("gpt-oss-120b", "vllm-hybrid", 131_072, 18 * 32_768 * (8192 + 9)),
        # 10 full and 52 sliding layers: seven groups of 10, eight places of the last one empty; 1,024 tokens touch 65 blocks.
        ("gemma-3-27b", "vllm-hybrid", 131_072, 10 * 131_072 * (8192 + 6 * 65)),
        # A full layer's token has half the bytes of a sliding one's: its block is twice as long.
        ("gemma-4-26b-a4b", "vllm-hybrid", 131_072, 5 * 131_072 * (4096 + 5 * 65)),
        # A state of 3,207,168 B wants blocks of 784 tokens of 4,096 B; 16 full layers, 3 groups of 16 states.
        ("qwen3.5-27b", "vllm-hybrid", 131_072, 16 * 784 * 4096 * (168 + 3)),
        # Latent vectors and index keys are pages of their own, all of them full attention: no padding.
        ("deepseek-v3.2", "vllm-hybrid", 131_072, 131_072 * 85_888),
        # One kind of window only: one group.
        ("mistral-7b-v0.1", "vllm-full", 131_072, 131_072 * 16 * (256 + 1)),
        # 8,192 / 128 entries of ratio 128 and 8,192 / 4 of ratio 4, and 9 blocks of window.
        ("deepseek-v4-flash", "paged", 8192, 43 * 1024 * 16 * 9 + 20 * 64 * 1024 + 21 * 2048 * 1280),
    ],
)  # fmt: skip
def test_engine_reserved_golden(name, rule, tokens, expected):
    assert reserved(name, tokens, rule) == expected


def test_a_prefill_chunk_in_flight_is_held_besides_the_window():
    grown = reserved("gpt-oss-120b", 131_072, "vllm-hybrid", in_flight_tokens=8192)
    assert grown == 18 * 32_768 * (8192 + (127 + 8192 + 15) // 16 + 1)


def test_layers_that_do_not_fit_a_common_page_are_padded():
    layers = (LayerKV(3, 64, 64), LayerKV(2, 64, 64, 64))
    geometry = KVGeometry("odd", "llama", 6, 2, layers)
    page = 16 * 3 * 128 * 2
    assert engine_reserved_bytes(geometry, 160, rule="vllm-hybrid") == page * (10 + 5)


@pytest.mark.parametrize(("full", "sliding", "groups"), [(12, 13, 2 * 13), (10, 15, 30), (10, 14, 28), (10, 20, 30)])
def test_group_size_is_the_smaller_count_unless_they_are_near(full, sliding, groups):
    geometry = KVGeometry("g", "llama", 8, 2, (LayerKV(8, 64, 64),) * full + (LayerKV(8, 64, 64, 10**6),) * sliding)
    assert engine_reserved_bytes(geometry, 16, rule="vllm-hybrid") == groups * 16 * 8 * 128 * 2


def test_rules_that_do_not_describe_a_model_say_so():
    with pytest.raises(ModelError, match="use 'paged'"):
        reserved("deepseek-v4-flash", 100, "vllm-hybrid")
    with pytest.raises(ModelError, match="use 'vllm-hybrid'"):
        reserved("jamba-v0.1", 100, "vllm-full")
    with pytest.raises(UnknownName, match="paged"):
        reserved("jamba-v0.1", 100, "sglang")
    assert rule_of(builtin("deepseek-v4-flash")) == "paged"
    with pytest.raises(BadInput, match="block_size = 0"):
        reserved("jamba-v0.1", 100, "paged", block_size=0)


def rules_for(geometry):
    return [
        rule
        for rule in RULES
        if not (rule == "vllm-full" and geometry.state_bytes)
        and not (rule != "paged" and any(layer.compressed_dim for layer in geometry.layers))
    ]


@settings(max_examples=150, deadline=None)
@given(NAMES, st.integers(0, 300_000), st.sampled_from([1, 10, 16, 64, 256]), st.integers(1, 9000), DTYPES, st.data())
def test_engines_never_reserve_less_than_the_architecture_needs(name, tokens, block_size, in_flight, dtype, data):
    geometry = builtin(name)
    rule, kv = data.draw(st.sampled_from(rules_for(geometry))), kv_dtype(dtype)
    options = {"rule": rule, "block_size": block_size, "in_flight_tokens": in_flight, "kv": kv}
    least = architectural_bytes(geometry, tokens, kv)
    here = engine_reserved_bytes(geometry, tokens, **options)
    assert least <= here
    assert here <= engine_reserved_bytes(geometry, tokens + 1, **options)
    assert least <= architectural_bytes(geometry, tokens + 1, kv)


def test_more_ranks_than_heads_duplicate_them():
    geometry = builtin("llama-3.1-70b")
    for tp, share in ((1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (64, 1)):
        (rank,) = rank_geometries(geometry, tp)
        assert rank.layers[0].num_kv_heads == share
        assert rank.kv_bytes(1000) == 1000 * 327_680 * share // 8
        assert rank.num_q_heads == 64 // tp


def test_latent_vectors_and_index_keys_are_replicated():
    (rank,) = rank_geometries(builtin("deepseek-v3.2"), 8)
    assert rank.kv_bytes_per_token == 85_888


def test_states_are_split():
    (rank,) = rank_geometries(builtin("qwen3.5-27b"), 4)
    assert rank.state_bytes == 153_944_064 // 4
    assert rank.kv_bytes_per_token == 65_536 // 4


def test_stages_split_layers_as_vllm_does():
    assert stage_layers(126, 4) == [31, 32, 32, 31]
    assert stage_layers(7, 2) == [4, 3]
    assert stage_layers(61, 8) == [7, 7, 8, 8, 8, 8, 8, 7]
    stages = rank_geometries(builtin("llama-3.1-405b"), tp=8, pp=4)
    assert [stage.kv_bytes_per_token for stage in stages] == [count * 512 for count in (31, 32, 32, 31)]


def test_a_layer_that_shares_across_stages_keeps_a_copy():
    first, second = rank_geometries(builtin("gemma-3n-e4b"), pp=2)
    assert [layer.shares_layer for layer in first.layers] == [None] * 18
    assert [layer.shares_layer for layer in second.layers[:7]] == [None, None, 0, 0, 0, 0, 1]
    whole = rank_geometries(builtin("gemma-3n-e4b"), pp=7)  # stages of 5: the last three only read
    assert sum(stage.kv_bytes_per_token for stage in whole) > builtin("gemma-3n-e4b").kv_bytes_per_token
    assert whole[6].layers[1].shares_layer == 0


@pytest.mark.parametrize(
    ("name", "tp", "pp", "reason"),
    [
        ("llama-3.1-8b", 3, 1, "query heads"),
        ("qwen2.5-7b", 14, 1, "KV heads"),
        ("llama-3.1-8b", 0, 1, "start at 1"),
        ("llama-3.1-8b", 1, 33, "at most as many stages"),
        ("jamba-v0.1", 1, 0, "start at 1"),
    ],
)
def test_splits_that_do_not_work_are_refused(name, tp, pp, reason):
    with pytest.raises(ModelError, match=reason):
        rank_geometries(builtin(name), tp, pp)


@settings(max_examples=150, deadline=None)
@given(NAMES, st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 8), st.integers(1, 200_000))
def test_shares_add_up_to_at_least_the_whole(name, tp, pp, tokens):
    geometry = builtin(name)
    try:
        stages = rank_geometries(geometry, tp, pp)
    except ModelError:
        return
    together = tp * sum(stage.kv_bytes(tokens) for stage in stages)
    assert together >= geometry.kv_bytes(tokens)
    owns = all(layer.shares_layer is None for layer in geometry.layers)
    divides = not any(layer.latent or layer.index_dim or layer.num_kv_heads % tp for layer in geometry.layers)
    if owns and divides:
        assert together == geometry.kv_bytes(tokens)
    assert sum(len(stage.layers) for stage in stages) == len(geometry.layers)


@pytest.mark.parametrize("name", builtin_names())
def test_bytes_of_one_more_token(name):
    assert growth(builtin(name)).bytes_per_token == builtin(name).kv_bytes_per_token


def test_growth_names_windows_and_entries():
    grown = growth(builtin("deepseek-v4-flash"))
    assert grown.windows == ((43 * 1024, 128),)
    assert grown.entries == ((21 * 1280, 4), (20 * 1024, 128))
    assert grown.per_token == grown.state == 0
