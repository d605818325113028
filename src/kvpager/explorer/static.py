"""All parts for fixed choices, as one file that needs no network and no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvpager.errors import BadInput, KVPagerError
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import Part, in_order
from kvpager.explorer.shown import show, templates, tiles
from kvpager.report.file import write_file
from kvpager.report.frame import page

__all__ = ["SUFFIXES", "check_target", "write_page"]

SUFFIXES = (".html", ".htm")


def check_target(path: Path) -> Path:
    """Return `path` if a page may be written there.

    Raises
    ------
    BadInput
        If it does not end like a page, or is a folder.
    """
    if path.suffix not in SUFFIXES:
        raise BadInput(f"cannot export to {str(path)!r}: an export is one page; name a file that ends in .html")
    if path.is_dir():
        raise BadInput(f"cannot export to {str(path)!r}: it is a folder; name a file in it")
    return path


def write_page(choices: Choices, path: Path) -> list[str]:
    """Write all parts for `choices` as one self-contained HTML file.

    A part that cannot be shown says why, and what it takes.

    Parameters
    ----------
    choices : Choices
        For which.
    path : Path
        File to write; its folder is made if need be. It is replaced in one step, or left as it was.

    Returns
    -------
    list of str
        Titles of the parts that could not be shown.

    Raises
    ------
    BadInput
        If `path` is a folder, does not end in ``.html`` or cannot be written.
    StorageFull
        If the disk is full.
    """
    check_target(path)
    parts = [_part(part, choices) for part in in_order()]
    specs = {
        f"{one['part'].number}-{index}": spec
        for one in parts
        if one["shown"] is not None
        for index, spec in enumerate(one["shown"].specs)
    }
    write_file(path, page(templates(), "explorer.html", specs, choices=choices, parts=parts))
    return [one["part"].title for one in parts if one["shown"] is None]


def _part(part: Part, choices: Choices) -> dict[str, Any]:
    """What the template shows of a part: what it draws, or words instead."""
    found: dict[str, Any] = {"part": part, "claimed": part.claimed(), "shown": None, "instead": "", "tiles": []}
    try:
        found["shown"] = show(part, choices)
        found["tiles"] = tiles(found["shown"].screen)
    except KVPagerError as error:
        found["instead"] = str(error)
    return found
