"""The table of check numbers that three outside sources agreed on, and kvcache-simulator as a second opinion on 28 models.

Bytes of one sequence at two bytes an element: ``a n + b min(n, w) + s``.
"""

import math

import pytest
from kvcache_sim import calculator

from kvpager.core import KVGeometry
from kvpager.models import builtin, builtin_config, builtin_names
from kvpager.models.base import geometry_of
from kvpager.models.sizes import Growth, growth

TABLE = [  # name, a, ((b, w), ...), s, GiB at 131,072 tokens
    ("llama-2-7b", 524_288, (), 0, 64.000),
    ("llama-3.1-8b", 131_072, (), 0, 16.000),
    ("llama-3.1-70b", 327_680, (), 0, 40.000),
    ("llama-3.1-405b", 516_096, (), 0, 63.000),
    ("mixtral-8x7b", 131_072, (), 0, 16.000),
    ("mistral-7b-v0.1", 0, ((131_072, 4096),), 0, 0.500),
    ("falcon-7b", 8_192, (), 0, 1.000),
    ("qwen3-8b", 147_456, (), 0, 18.000),
    ("qwen3-32b", 262_144, (), 0, 32.000),
    ("qwen3-235b-a22b", 192_512, (), 0, 23.500),
    ("deepseek-v3", 70_272, (), 0, 8.578),
    ("kimi-k2", 70_272, (), 0, 8.578),
    ("deepseek-v3.2", 85_888, (), 0, 10.484),
    ("gpt-oss-20b", 24_576, ((24_576, 128),), 0, 3.003),
    ("gpt-oss-120b", 36_864, ((36_864, 128),), 0, 4.504),
    ("gemma-4-26b-a4b", 20_480, ((204_800, 1024),), 0, 2.695),
    ("gemma-3-27b", 81_920, ((425_984, 1024),), 0, 10.406),
    ("gemma-3n-e4b", 8_192, ((32_768, 512),), 0, 1.016),
    ("mimo-v2-flash", 23_040, ((199_680, 128),), 0, 2.836),
    ("qwen3.5-27b", 65_536, (), 153_944_064, 8.143),
    ("qwen3-next-80b-a3b", 24_576, (), 77_266_944, 3.072),
    ("jamba-v0.1", 16_384, (), 28 * 2 * (3 * 8192 + 8192 * 16), 2.008),  # the table leaves the state open: 2.000 + s
    ("nemotron-3-nano-30b-a3b", 6_144, (), 24_965_120, 0.773),  # with a 16-bit state; its config says float32, see below
    ("llama-3.3-nemotron-super-49b", 200_704, (), 0, 24.500),
    ("llama-4-scout", 49_152, ((147_456, 8192),), 0, 7.125),
]


@pytest.mark.parametrize(("name", "a", "windows", "state", "gib"), TABLE, ids=[row[0] for row in TABLE])
def test_the_check_table(name, a, windows, state, gib):
    chosen = {"state_dtype_bytes": 2} if name.startswith("nemotron-3") else {}
    geometry = geometry_of(builtin_config(name), name, **chosen)
    assert growth(geometry) == Growth(a, windows, (), state)
    assert round(geometry.kv_bytes(131_072) / 2**30, 3) == gib


def test_the_table_has_all_rows():
    """24 rows; DeepSeek-V3 and Kimi K2 stand in one."""
    assert len(TABLE) == 24 + 1


def test_nemotrons_config_asks_for_a_wider_state_than_the_table():
    layers, conv, recurrent = 23, 3 * (4096 + 2 * 8 * 128), 4096 * 128
    assert builtin("nemotron-3-nano-30b-a3b").state_bytes == layers * (2 * conv + 4 * recurrent) == 49_082_368


def test_deepseek_at_its_longest_is_what_users_measured():
    assert math.isclose(builtin("deepseek-v3").kv_bytes(163_840) / 2**30, 10.72, abs_tol=0.005)


DATA = calculator.load_models_data()
ORACLE = calculator.models_by_id(DATA)
THEIR_NAMES = {"command-r7b": "cohere-command-r7b-12-2024"}
COMMON = [name for name in builtin_names() if THEIR_NAMES.get(name, name) in ORACLE]


def test_the_oracle_knows_many_of_our_models():
    assert len(COMMON) >= 28


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("tokens", [1000, 4096, 131_072])
def test_kvcache_simulator_counts_the_same_bytes(name, tokens):
    theirs = calculator.calculate_cache_size(
        ORACLE[THEIR_NAMES.get(name, name)], tokens=tokens, precision="bf16_fp16", indexer_precision="bf16_fp16",
        include_draft_kv_cache=False, include_linear_attention_state=True, models_data=DATA,
    )  # fmt: skip
    ours: KVGeometry = builtin(name)
    assert ours.kv_bytes(tokens) == theirs.total_bytes
