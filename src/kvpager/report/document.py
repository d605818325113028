"""What a report is made of: the JSON document of ``kvpager demo`` or ``ladder``, checked before anything is drawn.

A section that is absent is left out of the report. A section that is present but wrong is refused here, by
name and place, so that no chart ever shows a gap that looks like a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kvpager.errors import BadInput
from kvpager.evidence import Evidence

__all__ = ["Document", "check_document", "ladders", "percent"]

Document = Mapping[str, Any]

_ROW = ("policy", "pool", "hbm_fraction", "block_hit_ratio", "mass_hit_ratio", "evidence")

_REQUIRED: dict[str, tuple[str, ...]] = {
    "ladder": ("hbm_fraction", "pool", "rungs"),
    "ladder.rungs[]": (*_ROW, "name", "bound"),
    "ladder.others[]": ("hbm_fraction", "pool", "rungs"),
    "ladder.others[].rungs[]": (*_ROW, "name", "bound"),
    "ladder.references[]": _ROW,
    "ladder.subsets[]": ("hbm_fraction", "pool", "shapley", "leave_one_out"),
    "curves[]": _ROW,
    "access_definitions[]": ("name", "access", "value", "hbm_fraction", "pool", "policy"),
    "locality": ("evidence", "relative", "absolute", "by_layer", "blocks_needed", "coverage", "newest_10_percent", "first_4"),
    "head_types": ("evidence", "q_heads", "kv_heads", "by_layer", "rule", "limit"),
    "heatmap": ("layer", "kv_head", "steps", "policy", "pool", "hbm_fraction", "mass", "resident"),
    "claims[]": ("id", "stated", "finding", "outcome", "evidence"),
}

_RATIOS = {
    "hbm_fraction", "block_hit_ratio", "mass_hit_ratio", "byte_hit_ratio", "step_hit_ratio", "demand_only_hit_ratio", "read_mass",
    "p5_head_mass", "bound", "dense_bound", "top_mass_oracle", "staging_fraction", "metadata_fraction", "pinned_share", "value",
}  # fmt: skip

_TOLERANCE = 1e-6


def check_document(doc: object) -> Document:
    """Return `doc` if a report can be made of it.

    Parameters
    ----------
    doc : object
        Parsed JSON.

    Returns
    -------
    Document
        The same object.

    Raises
    ------
    BadInput
        If it is not an object, holds no section that a report shows, or a section lacks a key, has a ratio outside 0..1,
        an unknown evidence label, or a heat map whose two grids differ. The message names the place.
    """
    if not isinstance(doc, Mapping):
        raise BadInput(
            f"a report is made of a JSON object, not of {type(doc).__name__}: pass the output of 'kvpager demo --json'"
        )
    sections = {path.split(".")[0].removesuffix("[]") for path in _REQUIRED} - {"claims"}
    if not sections & doc.keys():
        raise BadInput(
            f"the document holds none of {', '.join(sorted(sections))}: "
            "pass the output of 'kvpager demo --json' or 'kvpager ladder --json'"
        )
    for path, keys in _REQUIRED.items():
        for place, found in _walk(doc, path.split("."), ""):
            _check_object(place, found, keys)
    _check_heatmap(doc.get("heatmap"))
    return doc


def ladders(doc: Document) -> list[dict[str, Any]]:
    """Return every ladder of the document, the main one first: ``hbm_fraction``, ``pool``, ``rungs``."""
    if "ladder" not in doc:
        return []
    main = doc["ladder"]
    mine = {key: main[key] for key in ("hbm_fraction", "pool", "rungs")}
    return [mine, *main.get("others", [])]


def percent(value: float | None, digits: int = 1) -> str:
    """Print a ratio as per cent, ``"54.0 %"``; a missing one as ``"–"``."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _walk(node: Any, path: list[str], place: str) -> Iterator[tuple[str, Any]]:
    """Yield every object at `path`, with its place as a reader would write it; absent ones are no matter."""
    if not path:
        yield place, node
        return
    key, many = path[0].removesuffix("[]"), path[0].endswith("[]")
    if not isinstance(node, Mapping) or key not in node:
        return
    child, here = node[key], f"{place}.{key}".lstrip(".")
    if not many:
        yield from _walk(child, path[1:], here)
        return
    if not isinstance(child, list):
        raise BadInput(
            f"{here} of the document is {type(child).__name__}, not a list: the file was edited or is of another version"
        )
    if here.endswith("rungs") and not child:
        raise BadInput(f"{here} of the document is empty: run 'kvpager ladder' again")
    for index, item in enumerate(child):
        yield from _walk(item, path[1:], f"{here}[{index}]")


def _check_object(place: str, found: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(found, Mapping):
        raise BadInput(
            f"{place} of the document is {type(found).__name__}, not an object: the file was edited or is of another version"
        )
    missing = [key for key in keys if key not in found]
    if missing:
        raise BadInput(f"{place} of the document lacks {', '.join(missing)}: run the command again with this version of kvpager")
    for key in _RATIOS & found.keys():
        value = found[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not -_TOLERANCE <= value <= 1 + _TOLERANCE:
            raise BadInput(f"{place}.{key} of the document is {value!r}, not a ratio of 0 to 1: run the command again")
    if "evidence" in keys:
        known = [label.label for label in Evidence]
        if found["evidence"] not in known:
            raise BadInput(f"{place}.evidence of the document is {found['evidence']!r}, not one of {', '.join(known)}")


def _check_heatmap(heatmap: Any) -> None:
    if heatmap is None:
        return
    shapes = [[len(row) for row in heatmap[key]] for key in ("mass", "resident")]
    if shapes[0] != shapes[1] or len(set(shapes[0])) != 1 or shapes[0][0] == 0:
        raise BadInput(
            "heatmap.mass and heatmap.resident of the document are not two full grids of one shape: run the command again"
        )
