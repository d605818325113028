"""Reading one value of a catalogue file: a number with unit, label, source and date, or a refusal that says what lacks.

``{ value = 63.0, unit = "GB/s", label = "analytical", source = "…", date = "2026-11-29", low = 60.0, high = 63.0 }``.
Label, source and date may stand once at the top of the entry and then hold for all its values.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kvpager.errors import BadInput, CatalogueError
from kvpager.evidence import Evidence, Quantity
from kvpager.units import in_base_unit

__all__ = ["DEFAULTS", "near", "read_value", "unit_of"]

DEFAULTS = ("label", "source", "date")
_KEYS = ("value", "unit", "low", "high", *DEFAULTS)
_SUFFIXES = {
    "_usd_per_kwh": "USD/kWh",
    "_usd_per_byte": "USD/B",
    "_usd_per_h": "USD/h",
    "_usd": "USD",
    "_flops_per_s": "FLOP/s",
    "_bytes_per_s": "B/s",
    "_bytes": "B",
    "_w": "W",
    "_s": "s",
}
_DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


def unit_of(field: str) -> str:
    """Base unit that a field's suffix stands for; ``"1"`` without one."""
    return next((unit for suffix, unit in _SUFFIXES.items() if field.endswith(suffix)), "1")


def near(word: str, known: Iterable[str]) -> str:
    """The known words nearest to `word`, or all of them, as a list in a sentence."""
    known = sorted(known)
    return ", ".join(difflib.get_close_matches(word, known, n=3, cutoff=0.4) or known)


def read_value(place: str, raw: Any, field: str) -> Quantity:
    """Read a value whose label, source and date have been filled in.

    Parameters
    ----------
    place : str
        File, section, entry and key, for messages.
    raw : Any
        What the file holds.
    field : str
        Field it belongs to; its suffix says the kind of unit. ``"*"`` accepts any unit.

    Returns
    -------
    Quantity
        In base units; the date is part of its source.

    Raises
    ------
    CatalogueError
        If anything is missing, contradictory, zero, negative or ambiguous.
    """
    if not isinstance(raw, Mapping):
        raise CatalogueError(
            f'{place}: {raw!r} has no unit: write {{ value = 1, unit = "{_example(field)}", label = …, source = …, date = … }}'
        )
    unknown = set(raw) - set(_KEYS)
    if unknown:
        raise CatalogueError(f"{place}: unknown key {min(unknown)!r}: did you mean {near(min(unknown), _KEYS)}?")
    for key in ("value", "unit", *DEFAULTS):
        if raw.get(key) in (None, ""):
            raise CatalogueError(f"{place}: has no {key}: every value needs value, unit, label, source and date")
    numbers = {key: _number(place, key, raw) for key in ("value", "low", "high") if key in raw}
    unit = ""
    try:
        for key in numbers:
            numbers[key], unit = in_base_unit(numbers[key], str(raw["unit"]))
        labels = frozenset({Evidence.of(str(raw["label"]))})
        _check(place, numbers, unit, field)
        source = f"{raw['source']} ({_date(place, raw['date'])})"
        name = " ".join(place.rsplit(": ", 1)[-1].split(".")[1:]).strip()
        return Quantity(numbers["value"], unit, labels, "", source, name, numbers.get("low"), numbers.get("high"))
    except CatalogueError:
        raise
    except BadInput as error:
        raise CatalogueError(f"{place}: {error}") from error


def _example(field: str) -> str:
    return {"B": "GB", "B/s": "GB/s", "FLOP/s": "TFLOP/s", "s": "us", "USD/B": "USD/GB"}.get(unit_of(field), unit_of(field))


def _number(place: str, key: str, raw: Mapping[str, Any]) -> float:
    number = raw[key]
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise CatalogueError(f'{place}: {key} = {number!r} is no number: write the number bare and its unit as unit = "GB"')
    if not math.isfinite(number) or number <= 0:
        raise CatalogueError(
            f"{place}: {key} = {number} must be above zero: correct it, or leave the value out if it is not known"
        )
    return float(number)


def _check(place: str, numbers: dict[str, float], unit: str, field: str) -> None:
    if field != "*" and unit != unit_of(field):
        raise CatalogueError(f"{place}: is in {unit}, but must be in {unit_of(field)}, for example {_example(field)}")
    if "efficiency" in field and max(numbers.values()) > 1:
        raise CatalogueError(f"{place}: is {max(numbers.values()):g}, but an efficiency is a share, above 0 and at most 1")


def _date(place: str, raw: Any) -> str:
    text = raw.isoformat() if isinstance(raw, datetime.date) else str(raw)
    if not _DATE.fullmatch(text):
        raise CatalogueError(f"{place}: date {text!r} is no date: write 2026-11-29, 2026-11 or 2026")
    return text
