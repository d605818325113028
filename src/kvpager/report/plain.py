"""Plain text for a terminal: paragraphs, lists and tables, as wide as it is at most."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

__all__ = ["listed", "table", "wrapped"]

_GAP = "  "


def wrapped(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Break a paragraph into lines, all indented by `indent`, and all but the first by `hanging` too."""
    return textwrap.wrap(text, _width(), initial_indent=indent, subsequent_indent=indent + hanging, break_on_hyphens=False)


def listed(title: str, texts: Iterable[str]) -> list[str]:
    """List texts below a title; no line if there are none."""
    items = [line for text in texts for line in wrapped(f"- {text}", _GAP, _GAP)]
    return ["", f"{title}:", *items] if items else []


def table(title: str, heads: Sequence[str], alignments: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Tabulate cells below a title, the widest column broken over lines where the terminal is too narrow.

    Parameters
    ----------
    title : str
        Above the table.
    heads : sequence of str
        Of the columns; a line break in a head or a cell is kept.
    alignments : str
        ``<`` or ``>`` for each column.
    rows : iterable of sequence of str
        As many cells as there are heads.

    Returns
    -------
    list of str
        An empty line, the title, heads, a rule, the rows.
    """
    cells = [heads, *rows]
    widths = [max(len(line) for row in cells for line in row[column].split("\n")) for column in range(len(heads))]
    for _ in range(max(0, sum(widths) + len(_GAP) * len(widths) - _width())):
        widths[widths.index(max(widths))] -= 1
    lines: list[list[str]] = []
    for row in cells:
        broken = [
            [piece for line in cell.split("\n") for piece in textwrap.wrap(line, width) or [""]]
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append(
            [
                "".join(
                    f"{_GAP}{(column[at] if at < len(column) else ''):{side}{width}}"
                    for column, side, width in zip(broken, alignments, widths, strict=True)
                ).rstrip()
                for at in range(max(map(len, broken)))
            ]
        )
    rule = _GAP + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return ["", *wrapped(title), *lines[0], rule, *(line for row in lines[1:] for line in row)]


def _width() -> int:
    return max(40, shutil.get_terminal_size((80, 24)).columns)
