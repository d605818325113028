"""Our reading of vLLM's rules against vLLM's own code: the golden numbers, and, where the engine is installed, the code itself.

The numbers were computed by vLLM 0.32.0's ``get_kv_cache_groups`` and ``_max_memory_usage_bytes_from_groups``, fed with one
spec a layer, for one sequence of 131,072 tokens with 1 and with 8,192 tokens in flight.
"""

from types import SimpleNamespace

import pytest

from kvpager.models import builtin, builtin_names
from kvpager.models.sizes import engine_reserved_bytes

TOKENS = 131_072
GOLDEN = {
    "command-r7b": (4_699_193_344, 5_504_499_712),
    "gemma-3-27b": (11_248_599_040, 15_275_130_880),
    "gemma-3-4b": (2_812_149_760, 3_818_782_720),
    "gemma-3n-e4b": (1_091_043_328, 1_359_478_784),
    "gemma-4-26b-a4b": (2_897_346_560, 4_575_068_160),
    "gemma-4-31b": (11_589_386_240, 18_300_272_640),
    "gpt-oss-120b": (4_837_146_624, 5_139_136_512),
    "gpt-oss-20b": (3_224_764_416, 3_426_091_008),
    "jamba-v0.1": (2_157_445_120, 2_157_445_120),
    "kimi-k3": (4_228_153_344, 4_228_153_344),
    "llama-4-maverick": (7_652_769_792, 8_860_729_344),
    "llama-4-scout": (7_652_769_792, 8_860_729_344),
    "mimo-v2-flash": (3_053_076_480, 4_940_513_280),
    "nemotron-3-nano-30b-a3b": (862_814_208, 862_814_208),
    "nemotron-3-super-120b-a12b": (1_260_912_640, 1_260_912_640),
    "nemotron-h-56b": (6_425_149_440, 6_425_149_440),
    "qwen3-next-80b-a3b": (3_321_888_768, 3_321_888_768),
    "qwen3.5-27b": (8_786_018_304, 8_786_018_304),
    "qwen3.5-35b-a3b": (2_768_240_640, 2_768_240_640),
    "qwen3.5-397b-a17b": (4_249_681_920, 4_249_681_920),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_reserved_bytes_are_what_the_engine_computed(name):
    sizes = [engine_reserved_bytes(builtin(name), TOKENS, rule="vllm-hybrid", in_flight_tokens=chunk) for chunk in (1, 8192)]
    assert tuple(sizes) == GOLDEN[name]


def test_every_model_of_several_kinds_of_layers_is_among_them():
    mixed = {
        name
        for name in builtin_names()
        if len({(x.window_tokens, x.state_bytes > 0) for x in builtin(name).layers if x.elements_per_token or x.state_bytes}) > 1
    }
    assert mixed - {"deepseek-v4-flash"} == set(GOLDEN)


def engine_config(chunk: int, hybrid: bool) -> SimpleNamespace:
    """The few settings that the engine's functions look at."""
    layout = SimpleNamespace(is_block_outermost=False)
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=TOKENS),
        max_in_flight_tokens=chunk,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=not hybrid),
        cache_config=SimpleNamespace(
            mamba_cache_mode="none", get_resolved_kv_cache_layout=lambda: layout, num_gpu_blocks_override=None
        ),
        speculative_config=None,
    )


def engine_specs(geometry, interface, torch):
    """One spec a layer, as vLLM's models make them; an indexer is a layer of its own."""
    state = max(layer.state_bytes for layer in geometry.layers)
    token = 2 * max(layer.elements_per_token for layer in geometry.layers)
    block = 16 * max(1, -(-state // (16 * token)))  # what vLLM's platform code sets for models with states
    shape = {"block_size": block, "dtype": torch.bfloat16}
    specs = {}
    for number, layer in enumerate(geometry.layers):
        if layer.state_bytes:
            specs[f"{number}"] = interface.MambaSpec(
                block_size=block, shapes=((layer.state_bytes // 2,),), dtypes=(torch.bfloat16,), page_size_padded=block * token
            )
        elif layer.elements_per_token:
            heads = shape | {"num_kv_heads": layer.num_kv_heads, "head_size": layer.k_dim}
            if layer.latent:
                specs[f"{number}"] = interface.MLAAttentionSpec(**heads)
            elif layer.window_tokens:
                specs[f"{number}"] = interface.SlidingWindowSpec(
                    **heads, head_size_v=layer.v_dim, sliding_window=layer.window_tokens
                )
            else:
                specs[f"{number}"] = interface.FullAttentionSpec(**heads, head_size_v=layer.v_dim)
        if layer.index_dim:
            specs[f"{number}.indexer"] = interface.MLAAttentionSpec(**shape, num_kv_heads=1, head_size=layer.index_dim)
    return specs


@pytest.mark.engines
@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("chunk", [1, 8192])
@pytest.mark.parametrize("name", [name for name in builtin_names() if name != "deepseek-v4-flash"])
def test_the_engines_own_code_agrees(name, chunk, hybrid):
    import torch
    from vllm.v1 import kv_cache_interface
    from vllm.v1.core import kv_cache_utils

    geometry, config = builtin(name), engine_config(chunk, hybrid)
    specs = engine_specs(geometry, kv_cache_interface, torch)
    rule = "vllm-hybrid" if hybrid else "vllm-full"
    if not hybrid and geometry.state_bytes:
        with pytest.raises(ValueError, match="unified"):
            kv_cache_utils.get_kv_cache_groups(config, specs)
        with pytest.raises(ValueError, match="hybrid manager"):
            engine_reserved_bytes(geometry, TOKENS, rule=rule, in_flight_tokens=chunk)
        return
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    theirs = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    assert engine_reserved_bytes(geometry, TOKENS, rule=rule, in_flight_tokens=chunk) == theirs
