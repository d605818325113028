"""Well-known models as facts: what a planner needs of them, without weights, each with source and date.

The facts are data, one file a model beside this one: the keys of its published config that geometry needs, and
parameter counts. A fact that nobody looked up says so: ``from memory, unverified``.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvpager.core import KVGeometry
from kvpager.errors import UnknownName
from kvpager.evidence import Evidence, Quantity
from kvpager.models.base import geometry_of, load_config, text_config
from kvpager.models.facts.weights import count_parameters

__all__ = ["ModelFacts", "builtin", "builtin_config", "builtin_names", "resolve"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model beside its weights.

    Parameters
    ----------
    name : str
        Built-in name, or the path's last part.
    title : str
        As its maker writes it.
    geometry : KVGeometry
        What its cache costs.
    hidden_dim, head_dim, vocab_size : int, optional
        As in the config. `head_dim` is the mean of key and value elements where they differ.
    rope_base, rope_dim : float, int, optional
        Base of the rotary embedding, and the elements of a head that are rotated; None where the config does not say.
    params_total, params_active : Quantity, optional
        Parameters of the text model, and those that one token uses: experts that it is not sent to left out. Of a
        directory, what its safetensors files hold; None without any.
    licence : str
        Licence of the weights as remembered, unverified; empty if not known.
    source, date : str
        Where the config comes from, and when it was read.
    evidence : Evidence
        How the config is known.
    """

    name: str
    title: str
    geometry: KVGeometry
    hidden_dim: int | None
    head_dim: int | None
    vocab_size: int | None
    rope_base: float | None
    rope_dim: int | None
    params_total: Quantity | None
    params_active: Quantity | None
    licence: str
    source: str
    date: str
    evidence: Evidence

    @property
    def num_layers(self) -> int:
        """Layers, those without attention included."""
        return len(self.geometry.layers)

    @property
    def num_attention_layers(self) -> int:
        """Layers that attend: to all tokens or to a window, over KV of their own or another's."""
        return sum(layer.num_kv_heads > 0 for layer in self.geometry.layers)

    @property
    def num_q_heads(self) -> int:
        """Query heads of a layer."""
        return self.geometry.num_q_heads

    @property
    def max_context_tokens(self) -> int | None:
        """The model's own limit."""
        return self.geometry.max_context_tokens


@cache
def builtin_names() -> tuple[str, ...]:
    """Names of the built-in models, sorted."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml")))


def builtin(name: str) -> KVGeometry:
    """Geometry of a built-in model; raises `UnknownName` with the nearest names."""
    return _builtin(name).geometry


def builtin_config(name: str) -> dict[str, Any]:
    """Keys of a built-in model's config, as `geometry_of` takes them; raises `UnknownName` with the nearest names."""
    about = _about(name)
    config: dict[str, Any] = about["config"] | dict.fromkeys(about.get("null", ()))  # TOML has no null
    return config


def resolve(text: str) -> ModelFacts:
    """Facts of a built-in model, or of a ``config.json`` or a directory that holds one.

    Parameters
    ----------
    text : str
        Name or path. A name wins; write ``./name`` for a directory that is called like a model.

    Raises
    ------
    UnknownName
        If it is neither; the nearest names are listed.
    ModelError
        If the config cannot be read or is refused.
    """
    if text in builtin_names():
        return _builtin(text)
    path = Path(text).expanduser()
    if not path.exists() and path.suffix != ".json":
        raise _unknown(text)
    config = load_config(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.resolve().name
    about = {"source": f"config.json of {name}", "date": "", "evidence": Evidence.VENDOR_SPEC.label}
    facts = _facts(name, config, about)
    directory = path if path.is_dir() else path.parent
    total, active = count_parameters(directory, text_config(config, name)) or (None, None)
    return replace(facts, params_total=total, params_active=active)


def _folder() -> Path:
    return Path(__file__).parent


@cache
def _builtin(name: str) -> ModelFacts:
    return _facts(name, builtin_config(name), _about(name))


def _about(name: str) -> dict[str, Any]:
    if name not in builtin_names():
        raise _unknown(name)
    return tomllib.loads(_folder().joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _unknown(name: str) -> UnknownName:
    near = difflib.get_close_matches(name.lower(), builtin_names(), n=4, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return UnknownName(
        f"unknown model {name!r}: {hint}Give a built-in name ('kvpager list models' shows all), a config.json or its directory"
    )


def _facts(name: str, config: Mapping[str, Any], about: Mapping[str, Any]) -> ModelFacts:
    geometry = geometry_of(config, name)
    text = text_config(config, name)
    params = about.get("params", {})
    return ModelFacts(
        name=name,
        title=about.get("title", name),
        geometry=geometry,
        hidden_dim=text.get("hidden_size"),
        head_dim=_head_dim(text, geometry),
        vocab_size=text.get("vocab_size"),
        rope_base=_rope(text, "rope_theta"),
        rope_dim=_rope_dim(text, geometry),
        params_total=_count(params, "total"),
        params_active=_count(params, "active"),
        licence=about.get("licence", ""),
        source=about["source"],
        date=about["date"],
        evidence=Evidence.of(about["evidence"]),
    )


def _count(params: Mapping[str, Any], key: str) -> Quantity | None:
    if key not in params:
        return None
    labels = frozenset({Evidence.of(params["evidence"])})
    return Quantity(params[key], "parameters", labels, source=params["source"])


def _rope(text: Mapping[str, Any], key: str) -> float | None:
    """A setting of the rotary embedding, of its own or among ``rope_parameters``; None where each kind of layer has its own."""
    among = text.get("rope_parameters")
    value = text.get(key) or (among.get(key) if isinstance(among, Mapping) else None)
    return float(value) if isinstance(value, int | float) else None


def _rope_dim(text: Mapping[str, Any], geometry: KVGeometry) -> int | None:
    """Elements of a head that are rotated, where the config says so; what it leaves out may be all of them, or none."""
    part, whole = _rope(text, "partial_rotary_factor"), _head_dim(text, geometry)
    if part is not None and whole is not None:
        return int(part * whole)
    given = text.get("qk_rope_head_dim", text.get("rotary_dim"))
    return given if isinstance(given, int) else None


def _head_dim(text: Mapping[str, Any], geometry: KVGeometry) -> int | None:
    """Mean of key and value elements of a query head; of latent attention, those that its projections make."""
    parts = [text.get(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    if any(layer.latent for layer in geometry.layers) and all(isinstance(part, int) for part in parts):
        return sum(part for part in parts if isinstance(part, int)) // 2
    shapes = [layer for layer in geometry.layers if layer.num_kv_heads and layer.window_tokens is None]
    shapes = shapes or [layer for layer in geometry.layers if layer.num_kv_heads]
    return (shapes[0].k_dim + (shapes[0].v_dim or shapes[0].k_dim)) // 2 if shapes else None
