"""What a chart is: panels drawn from a run's document, the same figures as a table, and the same in words.

A chart is one file in this folder. Panels carry no fixed colours and no fixed width: both come from the page
(`kvpager.report.charts.style`), so one spec serves light and dark, a phone and a PNG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import altair as alt
from altair.utils.schemapi import debug_mode

from kvpager.registry import Registry
from kvpager.report.document import Document

__all__ = ["CHARTS", "Chart", "Panel", "Table", "inline", "pixel", "rounded", "wrapped"]

CHARTS: Registry[Callable[[], Chart]] = Registry("charts", "kvpager.report.charts")


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Parameters
    ----------
    name : str
        Short and unique within its chart; part of file names and element ids.
    title, subtitle : str
        Heading; units of measure and evidence label.
    drawing : altair.Chart or altair.LayerChart
        Without title, width or colours of its own.
    """

    name: str
    title: str
    subtitle: str
    drawing: alt.Chart | alt.LayerChart | alt.FacetChart

    def spec(self, description: str = "") -> dict[str, Any]:
        """Return the Vega-Lite spec, as wide as its container; `description` is its text alternative."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        whole = self.drawing.properties(width="container", description=description, autosize=fit)
        spec: dict[str, Any] = whole.to_dict(
            validate=False
        )  # the tests hold that specs are valid; here it would cost as much again
        spec.pop("config", None)
        return spec

    def fixed(self, width: int, description: str = "") -> dict[str, Any]:
        """Return the spec `width` px wide, with title and subtitle inside: for pictures."""
        title = {"text": self.title, "subtitle": wrapped(self.subtitle, width // 6), "anchor": "start", "offset": 12}
        return {**self.spec(description), "width": width, "title": title}


@dataclass(frozen=True)
class Table:
    """The figures of a chart.

    Parameters
    ----------
    caption : str
        What the rows are.
    head : tuple of str
        Column names with units.
    rows : sequence of tuple of str
        Cells, as printed.
    evidence : sequence of str
        Evidence label of each row.
    """

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    evidence: Sequence[str]


class Chart:
    """Base of charts.

    Attributes
    ----------
    title : str
        Heading of the section.
    order : int
        Place in the report.
    needs : str
        Section of the document that it draws; without it there is no chart.
    """

    title: ClassVar[str]
    order: ClassVar[int]
    needs: ClassVar[str]

    def present(self, doc: Document) -> bool:
        """Return whether the document holds what the chart draws."""
        return bool(doc.get(self.needs))

    def lead(self, doc: Document) -> str:
        """Return the paragraph that says what is to be seen and how to read it."""
        raise NotImplementedError

    def panels(self, doc: Document) -> list[Panel]:
        """Return the drawings, in reading order."""
        raise NotImplementedError

    def alternative(self, doc: Document) -> str:
        """Return in words what the drawings show, figures included, for those who cannot see them."""
        raise NotImplementedError

    def table(self, doc: Document) -> Table:
        """Return the figures."""
        raise NotImplementedError


def inline(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return `rows` as data inside the spec, numbers rounded to four significant digits."""
    values = [{key: rounded(value) for key, value in row.items()} for row in rows]
    with debug_mode(False):  # rows have no schema to fail, and holding each against it takes 0.1 ms
        return _Rows(values=values)


class _Rows(alt.InlineData):
    """Data that nobody changes: copies of a chart, of which Altair makes many, share it."""

    def __deepcopy__(self, memo: object = None) -> _Rows:
        return self


def pixel(x: float) -> alt.XValue:
    """Return a place `x` px from the left edge."""
    return alt.XValue(x)  # type: ignore[no-untyped-call]


def rounded(value: Any) -> Any:
    """Round a float to four significant digits; leave the rest alone."""
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return value
    return round(value, 3 - math.floor(math.log10(abs(value))))


def wrapped(text: str, width: int) -> list[str]:
    """Break `text` into lines of at most `width` characters."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
