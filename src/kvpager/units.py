"""Bytes, seconds and shares: parse and print. The only file with a factor of 1024.

Decimal units (kB, MB, GB, TB) are powers of 1000, binary ones (KiB, MiB, GiB, TiB) of 1024. A bare
``G`` or ``K`` is refused for bytes, because it has misled this field for years. Token counts may use
``K`` = 1024.
"""

from __future__ import annotations

import difflib
import math
import re

from kvpager.errors import BadInput, CapacityError

__all__ = [
    "format_bytes",
    "format_count",
    "format_duration",
    "format_quantity",
    "format_share",
    "in_base_unit",
    "is_number",
    "parse_bytes",
    "parse_quantity",
    "parse_share",
    "parse_tokens",
]

_BYTES: dict[str, int] = {"B": 1} | {f"{p}B": 1000 ** (i + 1) for i, p in enumerate(["k", "M", "G", "T", "P"])}
_BYTES |= {"KB": 1000} | {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate(["K", "M", "G", "T", "P"])}
_DIGITS = r"\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][-+]?\d{1,2})?)\s*"
_NUMBER = re.compile(rf"{_DIGITS}([A-Za-z%]*)\s*")
_MEASURE = re.compile(rf"{_DIGITS}([A-Za-zµ%][A-Za-z/]*|)\s*")
_PREFIXES = {"": 1.0} | {p: 1000.0 ** (i + 1) for i, p in enumerate(["k", "M", "G", "T", "P"])}
_BASES: dict[str, tuple[float, str]] = (
    {unit: (float(factor), "B") for unit, factor in _BYTES.items()}
    | {f"{unit}/s": (float(factor), "B/s") for unit, factor in _BYTES.items()}
    | {f"USD/{unit}": (1 / factor, "USD/B") for unit, factor in _BYTES.items()}
    | {f"{prefix}{unit}": (factor, unit) for unit in ("FLOP/s", "W", "J", "Hz") for prefix, factor in _PREFIXES.items()}
    | {"s": (1.0, "s"), "ms": (1e-3, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "ns": (1e-9, "s")}
    | {unit: (1.0, unit) for unit in ("1", "USD", "USD/kWh", "USD/h")}
    | {"%": (0.01, "1")}
)


def _split(text: str, what: str, remedy: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise BadInput(f"{what} {text!r} is not a number with a unit: {remedy}")
    return float(match[1].replace(",", "").replace("_", "")), match[2]


def parse_bytes(text: str) -> int:
    """Parse ``"47GB"`` or ``"8MiB"`` to bytes.

    Parameters
    ----------
    text : str
        Number and unit.

    Returns
    -------
    int
        Bytes, >= 0.

    Raises
    ------
    BadInput
        If the unit is missing or ambiguous (``"47G"``), or the size negative.
    """
    remedy = "write for example 8MiB (1024-based) or 47GB (1000-based)"
    number, unit = _split(text, "size", remedy)
    if unit not in _BYTES:
        raise BadInput(f"size {text!r} has the unit {unit or '(none)'!r}, which is ambiguous or unknown: {remedy}")
    if number < 0:
        raise CapacityError(f"size {text!r} is negative: {remedy}")
    return round(number * _BYTES[unit])


def in_base_unit(number: float, unit: str) -> tuple[float, str]:
    """Convert a number to the base unit of its kind: B, B/s, FLOP/s, s, W, J, Hz, USD, USD/B, USD/kWh, USD/h or 1.

    ``in_base_unit(64, "GB/s") == (64e9, "B/s")``.

    Raises
    ------
    BadInput
        If the unit is unknown, or ambiguous such as ``"T"``, ``"G"`` or ``"Gb/s"``; the message names the near ones.
    """
    if unit not in _BASES:
        near = difflib.get_close_matches(unit, _BASES, n=4, cutoff=0.3) or ["GB", "GiB", "GB/s", "TFLOP/s", "us", "USD", "W"]
        raise BadInput(f"unit {unit!r} is ambiguous or unknown: write it out, for example {', '.join(near)}")
    factor, base = _BASES[unit]
    # Where the factor is below 1, dividing by the whole number keeps 5.2 ms equal to 0.0052 s.
    return (number * factor if factor >= 1 else number / round(1 / factor)), base


def parse_quantity(text: str) -> tuple[float, str]:
    """Parse ``"64GB/s"``, ``"2250 TFLOP/s"`` or ``"250 ns"`` to a number in its base unit; see `in_base_unit`."""
    match = _MEASURE.fullmatch(text)
    if match is None:
        raise BadInput(f"{text!r} is not a number with a unit: write for example 64GB/s, 8MiB or 250ns")
    return in_base_unit(float(match[1].replace(",", "").replace("_", "")), match[2] or "(none)")


def parse_share(text: str | float, *, whole_bytes: int | None = None) -> float:
    """Parse a share of all KV, given as ``"5%"``, ``"0.0684"`` or (if `whole_bytes` is known) as bytes.

    Parameters
    ----------
    text : str or float
        The share.
    whole_bytes : int, optional
        Bytes of the whole, to turn a size in bytes into a share.

    Returns
    -------
    float
        In (0, 1].

    Raises
    ------
    CapacityError
        If it is zero, negative or above 100 %.
    """
    remedy = "give a share such as 5% or 0.0684, above 0 and at most 100%"
    number, unit = _split(str(text), "size", remedy)
    if unit == "%":
        number /= 100
    elif unit:
        if whole_bytes is None:
            raise BadInput(f"size {text!r} is in bytes, but here a share of all KV is needed: {remedy}")
        number = parse_bytes(str(text)) / whole_bytes
    if not math.isfinite(number) or number <= 0 or number > 1:
        raise CapacityError(f"size {text!r} is {number:.4g} of all KV: {remedy}")
    return number


def is_number(text: str) -> bool:
    """Return whether `text` is a number without a unit."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_tokens(text: str) -> int:
    """Parse a token count; ``K`` = 1024, ``M`` = 1024 squared, as context lengths are written."""
    remedy = "write for example 4096 or 128K"
    number, unit = _split(text, "token count", remedy)
    factor = {"": 1, "K": 1024, "k": 1024, "M": 1024**2}.get(unit)
    if factor is None or number < 1 or number * factor != int(number * factor):
        raise BadInput(f"token count {text!r} is not a positive whole number: {remedy}")
    return int(number * factor)


def format_bytes(count: float, *, binary: bool = True) -> str:
    """Print bytes with a unit that says whether it is 1024-based: ``format_bytes(8192) == "8 KiB"``."""
    base, names = (1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]) if binary else (1000, ["B", "kB", "MB", "GB", "TB", "PB"])
    power = 0 if abs(count) < base else min(int(math.log(abs(count), base) + 1e-9), len(names) - 1)
    return f"{count / base**power:.4g} {names[power]}"


def format_duration(seconds: float) -> str:
    """Print seconds at a readable scale: ``"1.5 ms"``, ``"12 s"``, ``"3 min 20 s"``."""
    if seconds >= 59.95:
        seconds = round(seconds)
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * factor:  # so that three digits never round up to 1000 of the smaller unit
            return f"{seconds / factor:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


def format_share(share: float) -> str:
    """Print a ratio as per cent with at most four significant digits: ``"6.84 %"``."""
    return f"{100 * share:.4g} %"


def format_count(count: float) -> str:
    """Print a count with thousands separators."""
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.1f}"


def format_quantity(value: float, unit: str) -> str:
    """Print a value in its unit, at a readable scale: bytes and bytes/s in GB (1000-based), seconds, USD, FLOP/s.

    ``format_quantity(8e12, "bytes/s") == "8 TB/s"``; a ratio (unit ``"1"``) is a bare number.
    """
    if not math.isfinite(value):
        return "never" if unit == "s" else "unbounded"
    if unit == "s" and value >= 0:
        return format_duration(value) if value else "0 s"
    if unit in {"bytes", "B"}:
        return format_bytes(value, binary=False)
    if unit in {"bytes/s", "B/s"}:
        return f"{format_bytes(value, binary=False)}/s"
    if unit == "USD/B":
        return f"${value * 1000**3:,.4g}/GB"
    if unit == "USD":
        return f"${value:,.0f}" if abs(value) >= 1000 else f"${value:,.4g}"
    if unit in {"FLOP", "FLOP/s", "W", "Wh"} and abs(value) >= 1000:
        power = min(int(math.log10(abs(value)) // 3), 5)
        return f"{value / 1000**power:.4g} {' kMGTP'[power]}{unit}"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return number if unit == "1" else f"{number} {unit}"
