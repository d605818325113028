"""English prose that is on every machine: the Python language reference that ships with Python.

The text differs a little between versions of Python; results carry a hash of what was read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache

from kvpager.errors import BadInput

__all__ = ["interleave", "paragraphs", "passage"]


@cache
def paragraphs() -> tuple[str, ...]:
    """Return paragraphs of running text, 200 to 900 characters each, without code, tables and lists."""
    from pydoc_data.topics import topics

    found = []
    for name in sorted(topics):
        for part in re.split(r"\n\s*\n", topics[name]):
            text = " ".join(part.split())
            letters = sum(character.isalpha() or character in " ,." for character in text)
            if 200 < len(text) < 900 and letters / len(text) > 0.93 and not re.search(r"\d{3}", text):
                found.append(text)
    return tuple(dict.fromkeys(found))


def passage(rng: random.Random, tokens: int, count: Callable[[str], int]) -> list[str]:
    """Draw paragraphs without repetition until they fill `tokens`.

    Parameters
    ----------
    rng : random.Random
        Draws.
    tokens : int
        To fill, at most; short by less than the shortest paragraph that is left, mostly.
    count : callable
        Tokens of a text.

    Returns
    -------
    list of str
        In the order drawn.

    Raises
    ------
    BadInput
        If there is not that much prose.
    """
    drawn, left = [], tokens
    for text in rng.sample(paragraphs(), len(paragraphs())):
        size = count(text + "\n\n")
        if size <= left:
            drawn.append(text)
            left -= size
        if left < 40:
            return drawn
    if left > tokens // 10 + 60:
        raise BadInput(f"a passage of {tokens} tokens is longer than the prose at hand: ask for {tokens - left} or fewer")
    return drawn


def interleave(rng: random.Random, prose: Sequence[str], facts: Sequence[str]) -> str:
    """Spread `facts`, in order, over the gaps between paragraphs: one in each of as many equal stretches."""
    gaps = len(prose) + 1
    places = [
        rng.randrange(i * gaps // len(facts), max((i + 1) * gaps // len(facts), i * gaps // len(facts) + 1))
        for i in range(len(facts))
    ]
    parts: list[str] = []
    for gap in range(gaps):
        parts += [fact for place, fact in zip(places, facts, strict=True) if place == gap]
        parts += prose[gap : gap + 1]
    return "\n\n".join(parts)
