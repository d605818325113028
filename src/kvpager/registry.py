"""One door for every kind of plug-in: a decorator, and discovery of the folder's files.

A plug-in is one file in its kind's folder. It is found because it is there: nothing else is edited.
Third parties register through the entry-point group ``kvpager.<kind>``.
"""

from __future__ import annotations

import difflib
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from kvpager.errors import BadInput, InvariantError, UnknownName

__all__ = ["Registry", "configure", "summary"]

T = TypeVar("T")
S = TypeVar("S")


class Registry(Generic[T]):
    """Names of one kind of plug-in, discovered on first use.

    Parameters
    ----------
    kind : str
        Plural noun, e.g. ``"policies"``; also the entry-point group ``kvpager.policies``.
    package : str
        Package whose modules are imported on first use.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._found: dict[str, T] = {}
        self._searched = self._searched_outside = False

    def register(self, name: str) -> Callable[[S], S]:
        """Return a decorator that files its object under `name`; raise `InvariantError` if that is taken."""

        def file(plugin: S) -> S:
            known = self._found.get(name, plugin)
            if any(getattr(known, part, None) != getattr(plugin, part, None) for part in ("__module__", "__qualname__")):
                raise InvariantError(f"{self.kind} {name!r} is registered by {known!r} already: rename {plugin!r}")
            self._found[name] = plugin  # type: ignore[assignment]
            return plugin

        return file

    def __getitem__(self, name: str) -> T:
        """Look `name` up, in our own folder first; raise `UnknownName` with the nearest known names."""
        if name in self:
            return self._found[name]
        near = difflib.get_close_matches(name, self._found, n=3, cutoff=0.4) or sorted(self._found)
        raise UnknownName(
            f"unknown name {name!r} among {self.kind}: did you mean {', '.join(near)}? 'kvpager list {self.kind}' shows all"
        )

    def __iter__(self) -> Iterator[str]:
        self._search()
        self._search_outside()
        return iter(sorted(self._found))

    def __contains__(self, name: object) -> bool:
        for search in (partial(self._search_namesake, name), self._search, self._search_outside):
            if name in self._found:
                break
            search()
        return name in self._found

    def _search_namesake(self, name: object) -> None:
        """Import the file that is called like the plug-in, which spares all others."""
        if not self._searched and name in self._modules():
            importlib.import_module(f"{self._package}.{name}")

    def _search(self) -> None:
        if self._searched:
            return
        self._searched = True  # first, because a plug-in may look up another while it is imported
        try:
            self._import_all()
        except BaseException:
            self._searched = False  # half a registry must not pass for a whole one
            raise

    def _import_all(self) -> None:
        for module in self._modules():
            importlib.import_module(f"{self._package}.{module}")

    def _modules(self) -> list[str]:
        package = importlib.import_module(self._package)
        return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.ispkg]

    def _search_outside(self) -> None:
        """Take up third parties' plug-ins; reading every installed package's metadata takes a while, so only when asked."""
        if not self._searched_outside:
            from importlib.metadata import entry_points

            for entry in entry_points(group=f"kvpager.{self.kind}"):
                self._found.setdefault(entry.name, entry.load())
            self._searched_outside = True


def configure(registry: Registry[Callable[..., Any]], text: str) -> Any:
    """Build a plug-in from its written form ``name`` or ``name:key=value,key=value``.

    Values are read as JSON where they are JSON, else as text: ``placement:scale=rank,cuts=[0.3,0.6]``.

    Raises
    ------
    UnknownName
        For an unknown name.
    BadInput
        For a setting that the plug-in does not take, or of another kind: a text for a number, a number for a list.
    """
    name, _, settings = text.partition(":")
    factory = registry[name]
    plain = factory.func if isinstance(factory, partial) else factory
    takes = {field.name: field.default for field in fields(plain)} if is_dataclass(plain) else {}
    chosen: dict[str, Any] = {}
    for setting in filter(None, re.split(r",(?![^\[]*\])", settings)):
        key, _, value = setting.partition("=")
        try:
            chosen[key] = json.loads(value)
        except json.JSONDecodeError:
            chosen[key] = value
        if key not in takes or _kind(takes[key]) not in (None, _kind(chosen[key])):
            known = ", ".join(f"{known}={default!r}" for known, default in takes.items())
            raise BadInput(f"{name!r} among {registry.kind} does not take {setting!r}: it takes {known or 'no settings'}")
    return factory(**chosen)


def _kind(value: Any) -> Any:
    """Which of the kinds of settings `value` is; None for none of them, e.g. the default of an optional one."""
    kinds = (bool, int | float, str, list | tuple)
    return next((kind for kind in kinds if isinstance(value, kind)), None)


def summary(plugin: Any) -> str:
    """Return the first line of a plug-in's docstring; of a preset, with what it presets."""
    if isinstance(plugin, partial):
        preset = ", ".join(f"{key}={value!r}" for key, value in plugin.keywords.items())
        return f"{summary(plugin.func)} [{preset}]"
    return (plugin.__doc__ or "").strip().split("\n")[0]
