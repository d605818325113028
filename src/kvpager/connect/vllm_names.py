"""Under which namespace a vLLM engine stores its KV: whatever makes another engine's bytes wrong for it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import vllm
from vllm.config import VllmConfig, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingSpec

from kvpager.connect.weights import weights_id
from kvpager.errors import BadInput
from kvpager.store import Namespace

__all__ = ["namespace_of", "one_prefix"]

_CRYPTOGRAPHIC = ("sha256", "sha256_cbor")
_NO_MATTER = ("_name_or_path", "transformers_version")


def namespace_of(spec: OffloadingSpec, row_bytes: int, weights: str, lora: str) -> Namespace:
    """Return the namespace of an engine that is being set up.

    Salt of a request, LoRA adapter by name and path, and images are in vLLM's own block keys.

    Parameters
    ----------
    spec : OffloadingSpec
        What vLLM says of its KV.
    row_bytes : int
        Of a chunk.
    weights, lora : str
        What the user says of weights and adapters.

    Raises
    ------
    BadInput
        If something that matters cannot be found out, or vLLM's keys do not tell blocks apart for certain.
    """
    config = get_current_vllm_config_or_none()
    if config is None:
        raise BadInput(
            "a kvpager tier cannot learn from vLLM's own connector which model it is to serve: set kv_connector to "
            "KVPagerConnector and kv_connector_module_path to kvpager.connect.vllm"
        )
    _check(config, lora)
    model, parallel = config.model_config, spec.config.parallel
    text = model.hf_text_config
    rope = {name: getattr(text, name, None) for name in ("rope_parameters", "rope_scaling", "rope_theta")}
    layout = {
        "vllm": vllm.__version__, "device": f"{current_platform.device_type} {current_platform.get_device_name()}",
        "kv": getattr(spec.config, "kv_cache_layout", None), "canonical": spec.config.canonical_layout,
        "replicated": spec.config.replicated_layout, "row_bytes": row_bytes,
        "attention": getattr(getattr(config, "attention_config", None), "backend", None),
        "groups": [[group.tokens_per_block, *group.layer_names] for group in spec.config.groups],
        "blocks": spec.config.cache.blocks_per_chunk, "tokens_per_hash": spec.config.cache.tokens_per_hash,
        "parallel": [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
    }  # fmt: skip
    return Namespace(
        weights=_json([weights or _weights(config), model.quantization, config.load_config.load_format, _architecture(model)]),
        dtype=f"{spec.config.model.dtype} of {str(model.dtype).removeprefix('torch.')}", layout=_json(layout),
        block_tokens=spec.config.groups[0].tokens_per_block * spec.config.cache.blocks_per_chunk,
        rank=parallel.rank, ranks=parallel.world_size, lora=lora, rope=_json(rope),
    )  # fmt: skip


def one_prefix(spec: OffloadingSpec) -> bool:
    """Whether all layers keep the whole context, so that what an engine loads is the beginning of a prompt."""
    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    return len(spec.config.groups) == 1 and model is not None and not model.get_sliding_window() and not model.is_attention_free


def _check(config: VllmConfig, lora: str) -> None:
    hashing = config.cache_config.prefix_caching_hash_algo
    if hashing not in _CRYPTOGRAPHIC:
        raise BadInput(f"prefix_caching_hash_algo {hashing!r} does not tell blocks apart for certain: use sha256 or sha256_cbor")
    if config.lora_config is not None and not lora:
        raise BadInput("LoRA is on, and vLLM's keys hold an adapter's name, not its revision: set lora to what tells them apart")
    if getattr(config.cache_config, "calculate_kv_scales", False):
        raise BadInput("calculate_kv_scales makes scales that are not stored with the blocks: turn it off, or use another dtype")


def _weights(config: VllmConfig) -> str:
    model = config.model_config
    if config.load_config.load_format == "dummy":
        return f"dummy {model.seed}"
    if (path := Path(model.model)).exists():
        return weights_id(path)
    commit = getattr(model.hf_config, "_commit_hash", None)
    if not commit:
        raise BadInput(f"which revision of {model.model!r} this is cannot be found out: set weights to what tells it from others")
    return f"{model.model} {commit}"


def _architecture(model: Any) -> str:
    """Digest of the model's config with all overrides."""
    said = {name: value for name, value in model.hf_config.to_dict().items() if name not in _NO_MATTER}
    return hashlib.sha256(_json(said).encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
