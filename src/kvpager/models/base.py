"""From a Hugging Face ``config.json`` to a `KVGeometry`. What a family file does not know, it refuses.

A family is one function in one file, registered under Hugging Face's ``model_type``. It states the defaults
that transformers itself fills in for missing keys; nothing else is assumed. Keys that speak of the cache
(``kv_sharing_modes``, ``attention_chunk_size``, ...) and that the family never read are refused as well, because
a model that shares or compresses its KV would otherwise get a plausible, wrong size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import ModelError
from kvpager.registry import Registry

__all__ = [
    "CHUNKED",
    "DTYPE_BYTES",
    "FULL",
    "LINEAR",
    "MODELS",
    "SLIDING",
    "ConfigReader",
    "Heads",
    "family",
    "geometry_of",
    "load_config",
    "refused",
    "text_config",
]

FULL, SLIDING = "full_attention", "sliding_attention"
CHUNKED, LINEAR = "chunked_attention", "linear_attention"

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a KV element by the config's dtype. A config without one counts as 16-bit, as engines cache it."""

_SUSPECT_WORDS = frozenset(
    {"bidirectional", "chunk", "chunked", "compress", "compressed", "compression", "conv", "cross", "encoder", "global", "index"}
    | {"indexer", "kda", "kv", "latent", "linear", "mamba", "mla", "shared", "share", "sharing", "sparse", "ssm", "swa", "window"}
)
_SUSPECT_KEYS = frozenset({"layer_types", "per_layer_config"})
_HARMLESS_WORDS = frozenset({"expert", "experts", "intermediate", "mlp", "moe", "norm", "mtp", "rope", "activation"})
_HARMLESS_KEYS = frozenset(
    {"sliding_window_pattern", "_sliding_window_pattern"}
    | {"decoder_sparse_step", "chunk_size", "mamba_hidden_act", "use_mamba_kernels"}
)

Family = Callable[["ConfigReader"], KVGeometry]
MODELS: Registry[Family] = Registry("models", "kvpager.models")
_NEEDS: dict[str, set[str]] = {}
_FAMILY: dict[str, str] = {}


def family(*model_types: str, needs: Sequence[str] = ()) -> Callable[[Family], Family]:
    """Register a family's function under its ``model_type`` names.

    Parameters
    ----------
    *model_types : str
        Hugging Face's names of the text model; the first is the family's.
    needs : sequence of str
        Keys without a default, beyond those that every family needs. A complaint about a missing key names
        the families that need it.
    """

    def file(function: Family) -> Family:
        for model_type in model_types:
            function = MODELS.register(model_type)(function)
            _FAMILY[model_type] = model_types[0]
        for key in needs:
            _NEEDS.setdefault(key, set()).update(model_types)
        return function

    return file


@dataclass(frozen=True, slots=True)
class Heads:
    """Shape of ordinary attention: query heads, KV heads, elements of a head."""

    q: int
    kv: int
    dim: int

    def layer(self, window_tokens: int | None = None) -> LayerKV:
        """Return a layer of this shape, K and V alike."""
        return LayerKV(self.kv, self.dim, self.dim, window_tokens)


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
    state_dtype_bytes : int, optional
        Bytes of an element of a recurrent state; None: as the config or the family says.
    """

    def __init__(self, config: Mapping[str, Any], name: str, dtype_bytes: int, state_dtype_bytes: int | None = None) -> None:
        self.config = config
        self.name = name
        self.dtype_bytes = dtype_bytes
        self.state_dtype_bytes = state_dtype_bytes
        self.family = _FAMILY.get(str(config.get("model_type")), str(config.get("model_type")))
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value, None counting as missing; it then counts as known to the family."""
        self._read.add(key)
        value = self.config.get(key)
        return default if value is None else value

    def required(self, key: str, default: Any = None) -> Any:
        """Return a key's value; a missing key gives `default` or, without one, is refused."""
        value = self.get(key, default)
        if value is None:
            raise refused(self.name, f"its config has no {key!r}{_needed_by(key)}")
        return value

    def ignore(self, *keys: str) -> None:
        """Note keys that sound as if they spoke of the cache, but cost no bytes."""
        self._read.update(keys)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number >= `least`; a missing key gives `default` or, without one, is refused."""
        value = self.required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            kind = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
            raise refused(self.name, f"its config says {key} = {value!r}, which is not {kind}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean; a missing key gives `default`."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise refused(self.name, f"its config says {key} = {value!r}, which is neither true nor false")
        return value

    def per_layer(self, key: str, default: Sequence[Any] | None = None, *, known: Sequence[Any] | None = None) -> list[Any]:
        """Return a list with one entry a layer, each among `known`; a missing key gives `default` or is refused."""
        layers = self.count("num_hidden_layers")
        value = self.required(key, default)
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != layers:
            raise refused(self.name, f"its config lists {key} that do not match num_hidden_layers = {layers}")
        unknown = [entry for entry in value if known is not None and entry not in known]
        if unknown:
            raise refused(self.name, f"its config has {key} of the unknown type {unknown[0]}")
        return list(value)

    def kinds(self, default: Sequence[str], known: Sequence[str] = (FULL, SLIDING)) -> list[str]:
        """Return each layer's kind out of ``layer_types``, or the family's own pattern `default`; refuse unknown kinds."""
        return self.per_layer("layer_types", default, known=known)

    def windows(self, layer_types: Sequence[str], window_default: int | None) -> list[int | None]:
        """Return each layer's window in tokens, None for full attention.

        Parameters
        ----------
        layer_types : sequence of str
            The family's own pattern, used if the config lists no ``layer_types``.
        window_default : int, optional
            Window if the config has no ``sliding_window``.
        """
        kinds = self.kinds(layer_types)
        self.ignore("sliding_window")  # means nothing if no layer slides
        window = self.count("sliding_window", window_default) if SLIDING in kinds else None
        return [window if kind == SLIDING else None for kind in kinds]

    def heads(self, *, q_heads: int | None = None, kv_heads: int | None = None, head_dim: int | None = None) -> Heads:
        """Return the shape of attention.

        Parameters
        ----------
        q_heads, kv_heads, head_dim : int, optional
            The family's defaults for missing keys. None: the key is required (`q_heads`), as many as query
            heads (`kv_heads`), hidden size by query heads (`head_dim`).
        """
        heads = self.count("num_attention_heads", q_heads)
        of_kv = self.count("num_key_value_heads", kv_heads or heads)
        if heads % of_kv:
            raise refused(self.name, f"its {heads} query heads do not divide into {of_kv} KV heads")
        hidden = self.count("hidden_size")
        if head_dim is None and self.get("head_dim") is None and hidden % heads:
            raise refused(self.name, f"its config has no head_dim, and hidden_size = {hidden} does not divide by {heads} heads")
        return Heads(heads, of_kv, self.count("head_dim", head_dim or hidden // heads))

    def model(self, num_q_heads: int, layers: Sequence[LayerKV]) -> KVGeometry:
        """Build the geometry of `layers`; the context limit is the config's ``max_position_embeddings``."""
        longest = None if self.get("max_position_embeddings") is None else self.count("max_position_embeddings")
        return KVGeometry(self.name, self.family, num_q_heads, self.dtype_bytes, tuple(layers), longest)

    def refuse_unread(self) -> None:
        """Refuse a config that says something of the cache which the family did not ask for."""
        for key, value in self.config.items():
            words = set(str(key).lower().split("_"))
            if not value or key in self._read or key in _HARMLESS_KEYS or words & _HARMLESS_WORDS:
                continue
            if words & _SUSPECT_WORDS or key in _SUSPECT_KEYS:
                raise refused(self.name, f"its config says {key} = {value!r}, which family {self.family!r} does not describe")


def _needed_by(key: str) -> str:
    list(MODELS)  # finds every family file
    families = sorted(_NEEDS.get(key, ()))
    return f", which {'families' if len(families) > 1 else 'family'} {', '.join(families)} cannot do without" if families else ""


def refused(name: str, reason: str) -> ModelError:
    """Return the error that refuses model `name`, with the reason and what is known."""
    return ModelError(f"model {name!r} is refused: {reason}. Known families: {', '.join(MODELS)}")


def text_config(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the text model's part of a config: the nested ``text_config``, if there is one."""
    if not isinstance(config, Mapping):
        raise refused(name, f"its config is a {type(config).__name__}, not a JSON object")
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def geometry_of(
    config: Mapping[str, Any], name: str, *, dtype_bytes: int | None = None, state_dtype_bytes: int | None = None
) -> KVGeometry:
    """KV geometry of a model by its config.

    Parameters
    ----------
    config : mapping
        Contents of ``config.json``; a nested ``text_config`` is followed.
    name : str
        What to call the model.
    dtype_bytes : int, optional
        Bytes of a KV element; default by the config's dtype, 2 if it has none.
    state_dtype_bytes : int, optional
        Bytes of an element of a recurrent state (Mamba, linear attention); default by the config or the family.

    Returns
    -------
    KVGeometry
        Layer by layer. Layers that only draft tokens (multi-token prediction) are left out.

    Raises
    ------
    ModelError
        If the family is unknown, a key is missing, nonsense or contradicts another, or the config speaks of a
        cache that the family does not describe.

    Examples
    --------
    >>> config = {"model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576,
    ...           "num_attention_heads": 9, "num_key_value_heads": 3}
    >>> geometry_of(config, "smollm2").kv_bytes_per_token
    23040
    """
    text = text_config(config, name)
    model_type = text.get("model_type")
    if not isinstance(model_type, str) or model_type not in MODELS:
        raise refused(name, f"its family (model_type {model_type!r}) is unknown")
    if dtype_bytes is None:
        dtype_bytes = _dtype_bytes(name, text, config)
    reader = ConfigReader(text, name, dtype_bytes, state_dtype_bytes)
    geometry = MODELS[model_type](reader)
    reader.refuse_unread()
    return geometry


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
