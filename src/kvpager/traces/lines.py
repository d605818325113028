"""Text files of one record a line, plain or gzip, of which some may be malformed; and the fields of their records."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from kvpager.errors import BadInput, TraceError

__all__ = ["Lines", "json_object", "number", "whole_number", "whole_numbers"]

T = TypeVar("T")

_LONGEST_LINE: Final = 1 << 28  # bytes: what is longer is no text
_LARGEST: Final = 1 << 40
_UNREADABLE: Final = (OSError, EOFError, zlib.error)


class Lines:
    """The lines of a file, and a count of those that were skipped.

    Parameters
    ----------
    path : Path
        Plain or gzip, as its first bytes say.
    skip_bad : int
        Most malformed lines to skip; at one more reading stops.

    Raises
    ------
    BadInput
        If `skip_bad` is negative.
    """

    def __init__(self, path: Path, skip_bad: int = 0) -> None:
        if skip_bad < 0:
            raise BadInput(f"skip_bad is {skip_bad}: give 0 to refuse every malformed line, or how many may be skipped")
        self.path, self.skip_bad = path, skip_bad
        self.skipped, self.first_skipped = 0, ""

    def parsed(self, parse: Callable[[bytes], T], header: bytes = b"") -> Iterator[T]:
        """Yield what `parse` makes of each line that is not blank.

        Parameters
        ----------
        parse : callable
            Raises a `TraceError` that says what was expected if a line is malformed.
        header : bytes
            What the first line must be, if anything.

        Raises
        ------
        TraceError
            At a malformed line that may not be skipped, at another header, and where the file ends early.
        """
        for count, line in self._numbered():
            if header and count == 1:
                if line != header:
                    raise TraceError(f"{str(self.path)!r}, line 1: expected the header {header.decode()!r}; name its true format")
                continue
            try:
                result = parse(line)
            except TraceError as error:
                self.skip(f"{str(self.path)!r}, line {count}: {error}")
            else:
                yield result

    def head(self, size: int = 1 << 16) -> bytes:
        """Return the first bytes, decompressed; raise `TraceError` if they cannot be read."""
        try:
            with self._open() as file:
                return bytes(file.read(size))
        except _UNREADABLE as error:
            raise self._broken(error, 0) from error

    def report(self) -> dict[str, Any]:
        """What was skipped, for a trace's `source`; empty if nothing was."""
        return {"skipped": {"count": self.skipped, "first": self.first_skipped}} if self.skipped else {}

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        count = 0
        try:
            with self._open() as file:
                while line := file.readline(_LONGEST_LINE):
                    count += 1
                    if len(line) == _LONGEST_LINE:
                        raise TraceError(f"{str(self.path)!r}, line {count} is too long for a text file; name its true format")
                    if line := line.strip():
                        yield count, line
        except _UNREADABLE as error:
            raise self._broken(error, count) from error

    def _open(self) -> Any:
        with self.path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(self.path, "rb") if packed else self.path.open("rb")

    def _broken(self, error: Exception, count: int) -> TraceError:
        if isinstance(error, gzip.BadGzipFile | EOFError | zlib.error):
            return TraceError(f"gzip file {str(self.path)!r} is cut short or damaged after line {count}: copy it again")
        return TraceError(f"{str(self.path)!r} cannot be read ({getattr(error, 'strerror', None) or error}): give a trace file")

    def skip(self, what: str) -> None:
        """Count `what`, which names file, place and what was expected; raise it as `TraceError` if it is one too many."""
        self.skipped += 1
        self.first_skipped = self.first_skipped or what
        if self.skipped > self.skip_bad:
            raise TraceError(f"{what}; mend it, or allow more than {self.skip_bad} malformed ones")


def json_object(line: bytes) -> Mapping[str, Any]:
    """Return a line as the JSON object that it must be."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"expected a JSON object, which this is not ({str(error).split(':')[0]})") from None
    if not isinstance(record, dict):
        raise TraceError(f"expected a JSON object, not {_shown(record)}")
    return record


def number(record: Mapping[str, Any], name: str) -> float:
    """Return the field `name`, a number."""
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TraceError(f"expected {name!r}, a number, not {_shown(value)}")
    return float(value)


def whole_number(record: Mapping[str, Any], name: str, least: int) -> int:
    """Return the field `name`, a whole number of at least `least`."""
    value = record.get(name)
    if type(value) is not int or not least <= value < _LARGEST:
        raise TraceError(f"expected {name!r}, a whole number of at least {least}, not {_shown(value)}")
    return value


def whole_numbers(record: Mapping[str, Any], name: str) -> NDArray[np.uint64]:
    """Return the field `name`, a list of whole numbers from 0 to 2^64 - 1, as uint64."""
    values = record.get(name)
    if not isinstance(values, list) or not set(map(type, values)) <= {int} or min(values, default=0) < 0:
        raise TraceError(f"expected {name!r}, a list of whole numbers from 0 to 2^64 - 1, not {_shown(values)}")
    return np.array(values, np.uint64)


def _shown(value: object) -> str:
    """Value for a message: short, and nothing of a prompt."""
    if value is None or isinstance(value, bool | int | float):
        return str(value) if value is not None else "nothing"
    return {"str": "a text", "list": "another list", "dict": "an object"}.get(type(value).__name__, type(value).__name__)
