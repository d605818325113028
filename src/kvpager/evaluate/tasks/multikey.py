"""Pass keys of many owners, asked for by owner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvpager.evaluate.base import TASKS, Context, Language, Question
from kvpager.evaluate.prose import interleave, passage

__all__ = ["Multikey"]

OWNERS = (
    "Amsterdam", "Berlin", "Cairo", "Dublin", "Edinburgh", "Florence", "Geneva", "Helsinki", "Istanbul", "Jakarta",
    "Kyoto", "Lisbon", "Madrid", "Nairobi", "Oslo", "Prague", "Quebec", "Rome", "Santiago", "Tokyo",
)  # fmt: skip


@TASKS.register("multikey")
@dataclass
class Multikey:
    """Find one city's pass key among those of others, told in the same words.

    Guessing among the keys that the text told is right once in as many; small models do not do much better.
    Source: multi-key needles of RULER, Hsieh et al., arXiv 2404.06654. Differs in: the prose is natural, and each key of
    a context is asked for, from a fork.

    Parameters
    ----------
    trials : int
        Contexts.
    keys : int
        In each context, 2 to 20.
    tokens : int
        Of a context.
    seed : int
        Of prose, places and numbers.
    """

    trials: int = 4
    keys: int = 10
    tokens: int = 1900
    seed: int = 0
    chance: ClassVar[float] = 0.1

    def contexts(self, language: Language) -> Iterator[Context]:
        """Make the contexts one by one."""
        for trial in range(self.trials):
            rng = random.Random(f"multikey {self.seed} {trial}")
            owners = rng.sample(OWNERS, min(self.keys, len(OWNERS)))
            questions = tuple(Question(f"\n\nThe pass key of {owner} is", str(rng.randrange(10000, 100000))) for owner in owners)
            told = [f"{question.text.strip()} {question.answer}." for question in questions]
            used = len(language.more("\n\n".join(told)))
            prose = passage(rng, self.tokens - used, lambda text: len(language.more(text)))
            yield Context(interleave(rng, prose, told), questions)
