"""From a Hugging Face ``config.json`` to a `KVGeometry`. What a family file does not know, it refuses.

A family is one function in one file, registered under Hugging Face's ``model_type``. It states the defaults
that transformers itself fills in for missing keys; nothing else is assumed. Keys that speak of the cache
(``kv_sharing_modes``, ``attention_chunk_size``, ...) and that no family knows are refused as well, because a
model that shares or compresses its KV would otherwise get a plausible, wrong size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import ModelError
from kvpager.registry import Registry

__all__ = ["DTYPE_BYTES", "FULL", "MODELS", "SLIDING", "ConfigReader", "geometry_of", "load_config", "refused"]

FULL, SLIDING = "full_attention", "sliding_attention"

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a KV element by the config's dtype. A config without one counts as 16-bit, as engines cache it."""

_SUSPECT_WORDS = frozenset(
    {"bidirectional", "chunk", "chunked", "compress", "compressed", "compression", "conv", "cross", "encoder", "kv", "latent"}
    | {"linear", "mamba", "mla", "shared", "share", "sharing", "sparse", "ssm", "window"}
)
_KNOWN_KEYS = frozenset(
    {"use_sliding_window", "sliding_window", "max_window_layers", "sliding_window_pattern", "_sliding_window_pattern"}
)


class ConfigReader:
    """Typed access to one text config; every complaint is a `ModelError` with model, key and remedy.

    Parameters
    ----------
    config : mapping
        Keys of the (text) config.
    name : str
        What the user called the model.
    dtype_bytes : int
        Bytes of a KV element.
    """

    def __init__(self, config: Mapping[str, Any], name: str, dtype_bytes: int) -> None:
        self.config = config
        self.name = name
        self.dtype_bytes = dtype_bytes

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number; a missing key gives `default` or, without one, is refused."""
        value = self.config.get(key, default)
        if value is None:
            raise refused(self.name, f"its config has no {key!r}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise refused(self.name, f"its config says {key} = {value!r}, which is not a positive whole number")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean; a missing key gives `default`."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            raise refused(self.name, f"its config says {key} = {value!r}, which is neither true nor false")
        return value

    def windows(self, layer_types: Sequence[str], window_default: int | None) -> list[int | None]:
        """Return each layer's window in tokens, None for full attention.

        Parameters
        ----------
        layer_types : sequence of str
            The family's own pattern, used if the config lists no ``layer_types``.
        window_default : int, optional
            Window if the config has no ``sliding_window``.
        """
        kinds = self.config.get("layer_types")
        kinds = layer_types if kinds is None else kinds
        layers = self.count("num_hidden_layers")
        if not isinstance(kinds, Sequence) or isinstance(kinds, str) or len(kinds) != layers:
            raise refused(self.name, f"its config lists layer_types that do not match num_hidden_layers = {layers}")
        unknown = sorted({str(kind) for kind in kinds} - {FULL, SLIDING})
        if unknown:
            raise refused(self.name, f"its config has layers of the unknown type {', '.join(unknown)}")
        if SLIDING not in kinds:
            return [None] * layers
        window = self.count("sliding_window", window_default)
        return [window if kind == SLIDING else None for kind in kinds]

    def geometry(
        self,
        family: str,
        windows: Sequence[int | None],
        *,
        q_heads: int | None = None,
        kv_heads: int | None,
        head_dim: int | None,
    ) -> KVGeometry:
        """Build the geometry of a model whose layers differ in their window only.

        Parameters
        ----------
        family : str
            Registered name.
        windows : sequence
            From `windows`.
        q_heads, kv_heads, head_dim : int, optional
            The family's defaults for missing keys. None: the key is required (`q_heads`), as many as query
            heads (`kv_heads`), hidden size by query heads (`head_dim`).
        """
        heads = self.count("num_attention_heads", q_heads)
        of_kv = heads if self.config.get("num_key_value_heads", kv_heads) is None else self.count("num_key_value_heads", kv_heads)
        if heads % of_kv:
            raise refused(self.name, f"its {heads} query heads do not divide into {of_kv} KV heads")
        hidden = self.count("hidden_size")
        if self.config.get("head_dim", head_dim) is not None:
            size = self.count("head_dim", head_dim)
        elif hidden % heads:
            raise refused(self.name, f"its config has no head_dim, and hidden_size = {hidden} does not divide by {heads} heads")
        else:
            size = hidden // heads
        longest = None if self.config.get("max_position_embeddings") is None else self.count("max_position_embeddings")
        layers = tuple(LayerKV(of_kv, size, size, window) for window in windows)
        return KVGeometry(self.name, family, heads, self.dtype_bytes, layers, longest)


MODELS: Registry[Callable[[ConfigReader], KVGeometry]] = Registry("models", "kvpager.models")


def refused(name: str, reason: str) -> ModelError:
    """Return the error that refuses model `name`, with the reason and what is known."""
    return ModelError(f"model {name!r} is refused: {reason}. Known families: {', '.join(MODELS)}")


def geometry_of(config: Mapping[str, Any], name: str, *, dtype_bytes: int | None = None) -> KVGeometry:
    """KV geometry of a model by its config.

    Parameters
    ----------
    config : mapping
        Contents of ``config.json``; a nested ``text_config`` is followed.
    name : str
        What to call the model.
    dtype_bytes : int, optional
        Bytes of a KV element; default by the config's dtype, 2 if it has none.

    Returns
    -------
    KVGeometry
        Layer by layer.

    Raises
    ------
    ModelError
        If the family is unknown, a key is missing or nonsense, or the config speaks of a cache
        that the family does not describe.

    Examples
    --------
    >>> config = {"model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576,
    ...           "num_attention_heads": 9, "num_key_value_heads": 3}
    >>> geometry_of(config, "smollm2").kv_bytes_per_token
    23040
    """
    if not isinstance(config, Mapping):
        raise refused(name, f"its config is a {type(config).__name__}, not a JSON object")
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    family = text.get("model_type")
    if family not in MODELS:
        raise refused(name, f"its family (model_type {family!r}) is unknown")
    for key, value in text.items():
        if value and key not in _KNOWN_KEYS and _SUSPECT_WORDS & set(str(key).lower().split("_")):
            raise refused(name, f"its config says {key} = {value!r}, which family {family!r} does not describe")
    if dtype_bytes is None:
        dtype_bytes = _dtype_bytes(name, text, config)
    return MODELS[str(family)](ConfigReader(text, name, dtype_bytes))


def load_config(path: str | Path) -> dict[str, Any]:
    """Read a ``config.json``, given as the file or as its directory.

    Raises
    ------
    ModelError
        If there is no such file, or it holds no JSON object.
    """
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"model config {str(file)!r} cannot be read ({error.strerror}): give a config.json or its directory"
        ) from error
    except ValueError as error:
        raise ModelError(f"model config {str(file)!r} is not JSON ({error}): give a Hugging Face config.json") from error
    if not isinstance(config, dict):
        raise ModelError(f"model config {str(file)!r} is not a JSON object: give a Hugging Face config.json")
    return config


def _dtype_bytes(name: str, *configs: Mapping[str, Any]) -> int:
    for config in configs:
        dtype = config.get("dtype") or config.get("torch_dtype")
        if dtype is not None:
            known = DTYPE_BYTES.get(str(dtype).removeprefix("torch."))
            if known is None:
                raise refused(name, f"its dtype {dtype!r} is none of {', '.join(DTYPE_BYTES)}; give the bytes of a KV element")
            return known
    return 2
