"""Nemotron-H and Nemotron 3: Mamba-2 layers, a few of attention, and MLP or expert layers that keep nothing.

``hybrid_override_pattern`` spells the layers: M Mamba, * attention, - MLP, E experts. Newer configs list them as
``layers_block_type``.
"""

from __future__ import annotations

from kvpager.core import KVGeometry, LayerKV
from kvpager.models.base import ConfigReader, family, refused
from kvpager.models.states import mamba2_layer

__all__ = ["nemotron_h"]

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_SYNONYMS = {"linear_attention": "mamba", "full_attention": "attention"}  # as transformers writes them
_NEEDS = ("num_key_value_heads", "ssm_state_size", "mamba_num_heads", "mamba_head_dim", "n_groups", "conv_kernel")


@family("nemotron_h", needs=_NEEDS)
def nemotron_h(config: ConfigReader) -> KVGeometry:
    """The state's dtype is ``mamba_ssm_cache_dtype``, float32 where the config names none (transformers' default)."""
    heads = config.heads(
        kv_heads=config.count("num_key_value_heads"), head_dim=config.get("head_dim") or config.count("attention_head_dim", 128)
    )
    mamba = mamba2_layer(
        config,
        kernel=config.count("conv_kernel"),
        heads=config.count("mamba_num_heads"),
        head_dim=config.count("mamba_head_dim"),
        groups=config.count("n_groups"),
        state=config.count("ssm_state_size"),
        state_dtype=config.get("mamba_ssm_cache_dtype", "float32"),
    )
    config.ignore("use_conv_bias", "mamba_proj_bias")
    parts = {"mamba": mamba, "attention": heads.layer(), "mlp": LayerKV(0, 0, 0), "moe": LayerKV(0, 0, 0)}
    return config.model(heads.q, [parts[kind] for kind in _pattern(config)])


def _pattern(config: ConfigReader) -> list[str]:
    letters, listed = config.get("hybrid_override_pattern"), config.get("layers_block_type")
    if letters is None and listed is None:
        reason = "neither 'hybrid_override_pattern' nor 'layers_block_type', one of which family nemotron_h cannot do without"
        raise refused(config.name, f"its config has {reason}")
    if not isinstance(letters, str | None) or not isinstance(listed, list | None):
        raise refused(config.name, "its hybrid_override_pattern is not a text, or its layers_block_type not a list")
    spelled = [_LETTERS.get(letter, letter) for letter in letters or ""]
    kinds = spelled if listed is None else [_SYNONYMS.get(str(kind), str(kind)) for kind in listed]
    if letters is not None and spelled != kinds:
        raise refused(config.name, "its layers_block_type contradicts its hybrid_override_pattern")
    if len(kinds) != config.count("num_hidden_layers", len(kinds)):
        raise refused(config.name, f"its {len(kinds)} layers do not match num_hidden_layers = {config.get('num_hidden_layers')}")
    unknown = sorted(set(kinds) - set(_LETTERS.values()))
    if unknown:
        raise refused(config.name, f"its layers are of the unknown type {unknown[0]!r}")
    return kinds
