"""The contract of a foreign format of request traces: one file of settings that turns a file into pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from kvpager.registry import Registry
from kvpager.traces.lines import Lines
from kvpager.traces.pieces import PieceBuilder, Request
from kvpager.traces.requests import RequestTrace

__all__ = ["FORMATS", "Format", "LineFormat"]

FORMATS: Registry[Callable[..., Any]] = Registry("formats", "kvpager.traces.formats")


class Format(ABC):
    """A foreign format; a frozen dataclass whose fields are its settings, registered under its `name`."""

    name: ClassVar[str]
    """As registered."""
    chained: ClassVar[bool]
    """Whether its ids are prefix-chained."""
    rounding: ClassVar[str]
    """Which blocks a request lists: "ceil" all, the last perhaps partial; "floor" full ones; "either"; "none"."""

    @staticmethod
    @abstractmethod
    def recognises(name: str, head: bytes) -> bool:
        """Tell whether a file of this name, whose decompressed contents begin with `head`, is of this format."""

    @abstractmethod
    def pieces(self, path: Path, *, skip_bad: int = 0) -> Iterator[RequestTrace]:
        """Convert a file piece by piece.

        Parameters
        ----------
        path : Path
            The file.
        skip_bad : int
            Most malformed records that are skipped; `source["skipped"]` of the last piece counts them and quotes the first.

        Yields
        ------
        RequestTrace
            The pieces in order; none if the file holds no request.

        Raises
        ------
        TraceError
            If the file is missing, cut short, or has more malformed records than `skip_bad`; the message names file, line
            and what was expected.
        """

    def settings(self) -> dict[str, Any]:
        """The settings as JSON, for a trace's `source`; without secrets, which are fields that are not shown."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.repr}  # type: ignore[arg-type]

    def builder(self, lines: Lines) -> PieceBuilder:
        """Return a builder for what these lines hold."""
        told = {"format": self.name, "file": lines.path.name, "rounding": self.rounding}
        return PieceBuilder(self.rounding, chained=self.chained, source=lambda: told | self.settings() | lines.report())


class LineFormat(Format):
    """A format of one request a line."""

    header: ClassVar[bytes] = b""
    """Its first line, if that is fixed."""

    @abstractmethod
    def parse(self, line: bytes, before: PieceBuilder) -> Request:
        """Return the request of a line, after those `before` it; raise `TraceError`, saying what was expected."""

    def pieces(self, path: Path, *, skip_bad: int = 0) -> Iterator[RequestTrace]:  # docstring inherited
        lines = Lines(path, skip_bad)
        builder = self.builder(lines)
        for request in lines.parsed(lambda line: self.parse(line, builder), self.header):
            yield from builder.add(request)
        yield from builder.rest()
