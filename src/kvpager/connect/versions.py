"""Which versions of an engine a plug-in was tested with. Others are refused: their interfaces change without notice."""

from __future__ import annotations

import re
from importlib import import_module

from kvpager.errors import BadInput

__all__ = ["VLLM", "require"]

VLLM = "vllm", "0.28", "0.32"
"""Tested at both ends: see docs/engines.md."""


def require(name: str, first: str, last: str) -> tuple[int, int]:
    """Return the version of the package `name`, as major and minor.

    Parameters
    ----------
    name : str
        As it is imported.
    first, last : str
        Oldest and newest that will do, both inclusive, for example ``"0.28"``.

    Raises
    ------
    BadInput
        If it is not installed, or is of another version.
    """
    window = f"{name} {first} to {last}"
    try:
        said = str(getattr(import_module(name), "__version__", "unknown"))
    except ImportError as error:
        raise BadInput(f"the plug-in for {name} needs {name}, which cannot be imported ({error}): install {window}") from error
    version = _numbers(said)
    if version is None or not (_numbers(first) or version) <= version <= (_numbers(last) or version):
        raise BadInput(f"{name} {said} was not tested with this version of kvpager: use {window}, or a newer kvpager")
    return version


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    return (int(found[1]), int(found[2])) if found else None
