"""Reading catalogue files: the built-in ones, then the user's over them, entry by entry and key by key.

A file is TOML with the sections ``prices``, ``links``, ``tiers``, ``accelerators``, ``parts`` and ``systems``; ``about`` and
``measurements`` may hold anything and are not read. docs/hardware.md shows one.
"""

from __future__ import annotations

import functools
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from kvpager.errors import BadInput, CatalogueError, UnknownName
from kvpager.evidence import Quantity
from kvpager.hardware.bus import bus_limit_bytes_per_s, refuse_above
from kvpager.hardware.parts import KINDS, Accelerator, Link, Medium, Part, SizedRate
from kvpager.hardware.system import BillItem, System, TierPath
from kvpager.hardware.values import DEFAULTS, near, read_value, unit_of
from kvpager.units import parse_bytes

__all__ = ["Catalogue", "Section", "load"]

T = TypeVar("T")
SECTIONS = ("prices", "links", "tiers", "accelerators", "parts", "systems")
_FREE = ("about", "measurements")
_REFERENCES: dict[Any, str] = {Link: "links", Medium: "tiers", Accelerator: "accelerators"}


class Section(dict[str, T]):
    """Entries of one kind by name; an unknown name is answered with the near ones.

    Parameters
    ----------
    kind : str
        Plural noun, e.g. ``"links"``.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, name: str) -> T:
        """Refuse an unknown name."""
        raise UnknownName(f"unknown name {name!r} among {self.kind}: did you mean {near(name, self)}?")


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything known about hardware, by name.

    Parameters
    ----------
    prices : Section of Quantity
        Prices, rents, electricity and power usage effectiveness, as dated ranges.
    links : Section of Link
        Connections.
    tiers : Section of Medium
        What keeps blocks outside an accelerator.
    accelerators : Section of Accelerator
        GPUs and their like.
    parts : Section of Part
        Hosts, switches and the rest of a bill.
    systems : Section of System
        Machines composed of them.
    """

    prices: Section[Quantity]
    links: Section[Link]
    tiers: Section[Medium]
    accelerators: Section[Accelerator]
    parts: Section[Part]
    systems: Section[System]


@dataclass(frozen=True, slots=True)
class _Raw:
    """An entry as written, with its label, source and date spread over its values, and the files it comes from."""

    keys: dict[str, Any]
    file: str


def load(paths: Sequence[str | Path] = ()) -> Catalogue:
    """Load the built-in catalogue and merge `paths` over it, later files over earlier ones.

    Parameters
    ----------
    paths : sequence of str or Path
        The user's own catalogue files.

    Returns
    -------
    Catalogue
        Checked: every value has unit, label, source and date; no rate exceeds the bus it names.

    Raises
    ------
    CatalogueError
        For a file that is missing or no TOML, and for a value that lacks something; the message names file and key.
    UnknownName
        For a reference to an entry that no file has.
    PhysicalBoundError
        For a rate above what its bus can carry.
    """
    if not paths:
        return _built_in()
    merged = {section: dict(entries) for section, entries in _built_in_raw().items()}
    for path in paths:
        for section, entries in _read(str(path), _text(Path(path))).items():
            for name, raw in entries.items():
                old = merged[section].get(name)
                merged[section][name] = raw if old is None else _Raw(old.keys | raw.keys, raw.file)
    return _build(merged)


@functools.cache
def _built_in() -> Catalogue:
    return _build(_built_in_raw())


@functools.cache
def _built_in_raw() -> dict[str, dict[str, _Raw]]:
    merged: dict[str, dict[str, _Raw]] = {section: {} for section in SECTIONS}
    for file in sorted(Path(__file__).parent.rglob("*.toml")):
        for section, entries in _read(file.name, file.read_text(encoding="utf-8")).items():
            merged[section] |= entries
    return merged


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise CatalogueError(f"catalogue file {str(path)!r} cannot be read ({reason}): give a TOML file") from error


def _read(file: str, text: str) -> dict[str, dict[str, _Raw]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"catalogue file {file!r} is not TOML: {error}") from error
    found: dict[str, dict[str, _Raw]] = {section: {} for section in SECTIONS}
    for section, entries in document.items():
        if section in _FREE:
            continue
        if section not in SECTIONS:
            raise CatalogueError(f"{file}: unknown section {section!r}: did you mean {near(section, (*SECTIONS, *_FREE))}?")
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise CatalogueError(f"{file}: section {section!r} must hold named entries: write [{section}.NAME]")
        for name, entry in entries.items():
            found[section][name] = _Raw(entry if section == "prices" else _spread(entry), file)
    return found


def _spread(entry: dict[str, Any]) -> dict[str, Any]:
    """Give the entry's own label, source and date to each of its values that has none."""
    own = {key: entry[key] for key in DEFAULTS if key in entry}

    def fill(raw: Any) -> Any:
        return own | raw if isinstance(raw, dict) and ("value" in raw or "unit" in raw) else raw

    return {
        key: [fill(item) for item in raw] if isinstance(raw, list) else fill(raw)
        for key, raw in entry.items()
        if key not in DEFAULTS
    }


def _build(raw: dict[str, dict[str, _Raw]]) -> Catalogue:
    made = Catalogue(*(Section(section) for section in SECTIONS))
    for name, entry in raw["prices"].items():
        made.prices[name] = _price(f"{entry.file}: prices.{name}", entry.keys)
    makers: dict[str, tuple[type[Any], Callable[[str, Any], None]]] = {
        "links": (Link, _check_link),
        "tiers": (Medium, _check_medium),
        "accelerators": (Accelerator, lambda place, part: None),
        "parts": (Part, lambda place, part: None),
        "systems": (System, lambda place, part: None),
    }
    for section, (kind, check) in makers.items():
        for name, entry in raw[section].items():
            place = f"{entry.file}: {section}.{name}"
            try:
                part = _make(kind, place, {"name": name, **entry.keys}, made)
                check(place, part)
            except CatalogueError:
                raise  # names its place already
            except UnknownName as error:
                raise UnknownName(f"{place}: {error}") from error
            except BadInput as error:
                raise CatalogueError(f"{place}: {error}") from error
            getattr(made, section)[name] = part
    return made


def _price(place: str, keys: dict[str, Any]) -> Quantity:
    if "date" not in keys:
        raise CatalogueError(f"{place}: has no date: prices move, so say when this one held")
    if not {"low", "high"} <= set(keys):
        raise CatalogueError(f"{place}: has no range: give low and high; for a firm quote repeat the value in both")
    return read_value(place, {key: raw for key, raw in keys.items() if key != "title"}, "*")


def _make(kind: type[T], place: str, keys: Mapping[str, Any], made: Catalogue) -> T:
    """Build a dataclass from TOML keys, each read as its field's type asks."""
    untyped: Any = kind
    hints = _hints(untyped)
    known = {field.name: field for field in fields(untyped)}
    for key in keys:
        if key not in known:
            raise CatalogueError(f"{place}: unknown key {key!r}: did you mean {near(key, known)}?")
    lacking = [name for name, field in known.items() if field.default is MISSING and name not in keys]
    if lacking:
        raise CatalogueError(
            f"{place}: has no {lacking[0]}: it needs {', '.join(n for n in known if known[n].default is MISSING)}"
        )
    return kind(**{key: _convert(hints[key], f"{place}.{key}", raw, key, made) for key, raw in keys.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of a dataclass's fields; None left out of what is optional."""

    def plain(hint: Any) -> Any:
        optional = get_origin(hint) in (Union, types.UnionType)
        return next(kind for kind in get_args(hint) if kind is not type(None)) if optional else hint

    return {name: plain(hint) for name, hint in get_type_hints(kind).items()}


def _convert(hint: Any, place: str, raw: Any, key: str, made: Catalogue) -> Any:
    if hint is Quantity:
        by_name = isinstance(raw, str) and (key == "pue" or "_usd" in key)
        return _priced(place, raw, key, made) if by_name else read_value(place, raw, key)
    if hint in _REFERENCES:
        return getattr(made, _REFERENCES[hint])[_typed(place, raw, str)]
    if hint == tuple[SizedRate, ...]:
        return tuple(_sized(f"{place}[{i}]", item) for i, item in enumerate(_typed(place, raw, list)))
    if hint == tuple[TierPath, ...]:
        return tuple(_make(TierPath, f"{place}[{i}]", item, made) for i, item in enumerate(_typed(place, raw, list)))
    if hint == tuple[BillItem, ...]:
        return tuple(_bill_item(place, part, count, made) for part, count in _typed(place, raw, dict).items())
    if hint == tuple[str, ...]:
        return tuple(_typed(place, item, str) for item in _typed(place, raw, list))
    return _typed(place, raw, hint)


def _typed(place: str, raw: Any, kind: type[T]) -> T:
    if not isinstance(raw, kind) or (isinstance(raw, bool) and kind is not bool):
        raise CatalogueError(f"{place}: {raw!r} is no {kind.__name__}: write one")
    if kind is int and raw < 1:  # type: ignore[operator]
        raise CatalogueError(f"{place}: {raw} must be at least 1")
    return raw


def _priced(place: str, raw: Any, key: str, made: Catalogue) -> Quantity:
    """Look up a price by name; its unit must be what the field needs."""
    price = made.prices[_typed(place, raw, str)]
    if price.unit != unit_of(key):
        raise CatalogueError(f"{place}: price {raw!r} is in {price.unit}, but must be in {unit_of(key)}")
    return price


def _sized(place: str, raw: Any) -> SizedRate:
    keys = dict(_typed(place, raw, dict))
    size = keys.pop("size", None)
    if size is None:
        raise CatalogueError(f'{place}: has no size: write for example size = "64KiB"')
    size_bytes = parse_bytes(str(size))
    if size_bytes < 1:
        raise CatalogueError(f"{place}: size {size!r} must be at least one byte")
    return SizedRate(size_bytes, read_value(place, keys, "rate_bytes_per_s"))


def _bill_item(place: str, part: str, count: Any, made: Catalogue) -> BillItem:
    section, _, name = part.partition("/")
    if section not in ("accelerators", "tiers", "parts"):
        raise CatalogueError(f"{place}: {part!r} is no item: write accelerators/NAME, tiers/NAME or parts/NAME")
    if isinstance(count, bool) or not isinstance(count, int | float) or count <= 0:
        raise CatalogueError(f"{place}: quantity of {part!r} is {count!r}: give a number above zero")
    thing: Accelerator | Medium | Part = getattr(made, section)[name]
    return BillItem(part, thing.title, float(count), thing.unit_price_usd(), thing.power_w)


def _check_link(place: str, link: Link) -> None:
    if link.bus:
        limit = bus_limit_bytes_per_s(link.bus, link.lanes)
        for rate in (link.bandwidth_bytes_per_s, *(entry.rate_bytes_per_s for entry in link.by_size)):
            refuse_above(place, rate, limit)


def _check_medium(place: str, medium: Medium) -> None:
    if medium.kind not in KINDS:
        raise CatalogueError(f"{place}.kind: {medium.kind!r} is unknown: did you mean {near(medium.kind, KINDS)}?")
    if not medium.bus:
        return
    limit = bus_limit_bytes_per_s(medium.bus, medium.lanes)
    sized = [entry.rate_bytes_per_s for entry in (*medium.read_by_size, *medium.write_by_size)]
    for rate in (medium.read_bytes_per_s, medium.write_bytes_per_s, *sized):
        refuse_above(place, rate, limit)
    if medium.mixed_bytes_per_s is not None:
        both = Quantity(
            2 * limit.value, "B/s", limit.labels, f"2 x {limit.formula}", limit.source, f"two directions of {limit.name}"
        )
        refuse_above(place, medium.mixed_bytes_per_s, both)
