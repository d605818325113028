"""What is looked at before anything is shown: the choices that a command line or a link names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

from kvpager.errors import BadInput
from kvpager.explorer.choices import Choices, from_query, to_query
from kvpager.explorer.sources import document, facts, recording, system

__all__ = ["FILES", "PART", "check", "from_link", "from_text", "to_link", "to_text"]

PART = "part"
"""A link's parameter beside the choices: the number of the part that is shown."""

FILES = ("trace", "run")
"""Choices that name files of this machine."""


def check(choices: Choices) -> Choices:
    """Return `choices` if the model, the system and the files that they name can be used.

    Raises
    ------
    UnknownName
        If the system is not in the catalogue.
    ModelError
        If the model is neither built in nor a config that can be used.
    TraceError
        If the recording is missing, damaged, of another kind, or too new.
    BadInput
        If the run's document is missing or none.
    """
    facts(choices.model)
    system(choices.system)
    for name, read in zip(FILES, (recording, document), strict=True):
        if choices.source(name) is not None:
            read(choices)
    return choices


def to_text(choices: Choices) -> str:
    """Return the choices as one word, for the page's own command line."""
    return urlencode(to_query(choices))


def from_text(text: str) -> Choices:
    """Read what `to_text` wrote."""
    return from_query(dict(parse_qsl(text, keep_blank_values=True)))


def to_link(choices: Choices, base: Choices, part: int) -> dict[str, str]:
    """Return a link's parameters: the part that is shown, the model, and every choice that is not the default.

    Parameters
    ----------
    choices : Choices
        What the reader chose.
    base : Choices
        What the server began with; its files stand for absent ones, so that a file which was dropped is named as "".
    part : int
        Its number.
    """
    dropped = {name: "" for name in FILES if getattr(base, name) and not getattr(choices, name)}
    return {PART: str(part), "model": choices.model} | to_query(choices) | dropped


def from_link(query: Mapping[str, str], base: Choices, numbers: Sequence[int]) -> tuple[Choices, int]:
    """Read a link's parameters, and look at what they name.

    A link that names any choice holds them all: one that is absent has its default, but for the files, which are the
    server's. A link that names none leaves the server's choices.

    Parameters
    ----------
    query : mapping of str to str
        Parameters.
    base : Choices
        What the server began with.
    numbers : sequence of int
        Those of the parts; without one in the link it is the first.

    Returns
    -------
    Choices, int
        The choices and the number of the part.

    Raises
    ------
    BadInput
        For an unknown name, a value that is no number or out of range, and whatever `check` refuses.
    """
    named = {name: text for name, text in query.items() if name != PART}
    part = query.get(PART, str(numbers[0]))
    if part not in map(str, numbers):
        raise BadInput(f"the link's {PART}={part!r} is no part of the walk: choose {numbers[0]} to {numbers[-1]}")
    if not named:
        return base, int(part)
    return check(from_query(named, Choices(**{name: getattr(base, name) for name in FILES}))), int(part)
