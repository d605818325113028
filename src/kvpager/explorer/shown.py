"""A part's screen made ready to be drawn, once for the same choices: specs, and the pieces of HTML around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from altair.utils.schemapi import debug_mode

from kvpager.explorer.choices import Choices
from kvpager.explorer.opening import FILES
from kvpager.explorer.part import Part, Screen
from kvpager.explorer.sources import Stamp, stamp
from kvpager.report.charts.base import Table
from kvpager.report.frame import environment
from kvpager.units import format_quantity

if TYPE_CHECKING:
    import jinja2

__all__ = ["Shown", "matching", "piece", "show", "templates", "tiles"]


@dataclass(frozen=True)
class Shown:
    """A screen with its drawings as specs.

    Parameters
    ----------
    screen : Screen
        As the part made it.
    specs : tuple of dict
        Vega-Lite, one a panel, each with its words as description.
    commands : tuple of str
        Command lines that print the screen's figures, the part's own first.
    """

    screen: Screen
    specs: tuple[dict[str, Any], ...]
    commands: tuple[str, ...]


def show(part: Part, choices: Choices) -> Shown:
    """Return what a part shows; an answer is kept until the choices' files change.

    Raises
    ------
    KVPagerError
        As `Part.screen`.
    """
    files = [path for name in FILES if (path := choices.source(name))]
    make: Callable[[], Part] = type(part)
    return _show(make, choices, tuple(map(stamp, files)))


@lru_cache(maxsize=128)
def _show(make: Callable[[], Part], choices: Choices, stamps: tuple[Stamp, ...]) -> Shown:
    part = make()
    with debug_mode(False):  # the tests hold that specs are valid; here it would cost as much again
        screen = part.screen(choices)
        specs = tuple(panel.spec(f"{panel.title}. {screen.words}") for panel in screen.panels)
    commands = dict.fromkeys([part.command(choices), *(figure.command for figure in screen.figures)])
    return Shown(screen, specs, tuple(commands))


def matching(table: Table, text: str) -> Table:
    """Return the table with the rows that hold every word of `text`, in any cell or label, whatever the case."""
    words = text.casefold().split()
    kept = [
        (row, label)
        for row, label in zip(table.rows, table.evidence, strict=True)
        if all(word in " ".join([*row, label]).casefold() for word in words)
    ]
    return Table(table.caption, table.head, [row for row, _ in kept], [label for _, label in kept])


def tiles(screen: Screen) -> list[dict[str, str]]:
    """Return the figures as the page prints them: ``value``, ``span`` (their range, or empty), ``label``, ``evidence``."""
    found = []
    for figure in screen.figures:
        quantity = figure.quantity
        ends = [format_quantity(end, quantity.unit) for end in quantity.ends] if quantity.is_range else []
        found.append(
            {
                "value": format_quantity(quantity.value, quantity.unit),
                "span": " to ".join(ends),
                "label": figure.label,
                "evidence": quantity.evidence.label,
            }
        )
    return found


def piece(name: str, *values: Any) -> str:
    """Return a piece of HTML: a macro of ``pieces.html`` with its arguments."""
    return str(getattr(templates().get_template("pieces.html").module, name)(*values))


@cache
def templates() -> jinja2.Environment:
    """The explorer's templates, and the report's."""
    return environment("kvpager.explorer")
