"""Writing a profile as a catalogue file, which `load` reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput

__all__ = ["write_profile"]


def write_profile(profile: Mapping[str, Any], path: str | Path) -> None:
    """Write what `probe` returned as a TOML catalogue file.

    Parameters
    ----------
    profile : mapping
        The profile.
    path : str or Path
        Where to; an existing file is replaced.

    Raises
    ------
    BadInput
        If the file cannot be written.
    """
    lines = ['# Measured by kvpager\'s probe. A catalogue file: kvpager.hardware.load(["…"]) reads it over the built-in ones.']
    for section, content in profile.items():
        if section == "measurements":
            tables = [("[[measurements]]", row) for row in content]
        elif section == "about":
            tables = [("[about]", content)]
        else:
            tables = [(f"[{section}.{name}]", entry) for name, entry in content.items()]
        for header, entry in tables:
            lines += ["", header, *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    try:
        Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"profile {str(path)!r} cannot be written ({error.strerror}): name another file") from error


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[\n" + "".join(f"  {_toml(item)},\n" for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers and truth values are written alike in both
