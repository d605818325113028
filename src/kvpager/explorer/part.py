"""What a part of the walk is: one screen of pictures, numbers and words, the claims it tests, the command that repeats it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvpager.evidence import Quantity
from kvpager.explorer.choices import Choices, Slider, slider_of
from kvpager.registry import Registry
from kvpager.report.charts.base import Panel, Table

__all__ = ["PARTS", "Figure", "Part", "Screen", "in_order"]

PARTS: Registry[Callable[[], Part]] = Registry("parts", "kvpager.explorer.parts")


@dataclass(frozen=True)
class Figure:
    """A number on the page.

    Parameters
    ----------
    label : str
        What it is.
    quantity : Quantity
        Value, unit and how it is known.
    command : str
        The command line that prints it.
    key : str
        Its place in that command's ``--json`` document: keys and positions, joined by dots.
    """

    label: str
    quantity: Quantity
    command: str
    key: str

    def text(self) -> str:
        """Value with unit, range and evidence label."""
        return f"{self.quantity.text()} [{self.quantity.evidence.label}]"


@dataclass(frozen=True)
class Screen:
    """What a part shows for some choices.

    Parameters
    ----------
    panels : tuple of Panel
        One or two pictures.
    figures : tuple of Figure
        The numbers that matter, each as the command line prints it.
    words : str
        What the pictures show, figures included: their text alternative.
    table : Table, optional
        Rows to be searched.
    """

    panels: tuple[Panel, ...]
    figures: tuple[Figure, ...]
    words: str
    table: Table | None = None


class Part:
    """Base of the parts; one file each in ``parts/``.

    Attributes
    ----------
    number : int
        Place in the walk.
    title : str
        Heading.
    shows : str
        One sentence: what is to be seen.
    known : str
        What is known about it, and how.
    claims : tuple of str
        Entries of the ledger that it bears on.
    sliders : tuple of str
        Choices that move the pictures.
    """

    number: ClassVar[int]
    title: ClassVar[str]
    shows: ClassVar[str]
    known: ClassVar[str]
    claims: ClassVar[tuple[str, ...]] = ()
    sliders: ClassVar[tuple[str, ...]] = ()

    def command(self, choices: Choices) -> str:
        """Return the command line that repeats the part's figures."""
        raise NotImplementedError

    def screen(self, choices: Choices) -> Screen:
        """Return what is shown.

        Raises
        ------
        NoTrace
            If it needs a recording or a run and none is chosen.
        KVPagerError
            If what is chosen cannot be read, or does not have what the choices name.
        """
        raise NotImplementedError

    def slider(self, name: str, choices: Choices) -> Slider:
        """Return a slider of the part, with ends that fit what is chosen."""
        return slider_of(name)

    def claimed(self) -> list[Mapping[str, Any]]:
        """Return what the notes claimed: each entry's row of the ledger, as ``kvpager claims --json`` prints it."""
        from kvpager.claims.check import row

        return [row(name) for name in self.claims]


def in_order() -> list[Part]:
    """All parts, in the order of the walk."""
    return sorted((PARTS[name]() for name in PARTS), key=lambda part: part.number)
