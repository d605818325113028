"""Numbers hidden in prose, asked for one at a time after the whole text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvpager.evaluate.base import TASKS, Context, Language, Question
from kvpager.evaluate.prose import interleave, passage

__all__ = ["Needle"]

FACTS = (
    "The pass key of the vault is", "The phone number of the bakery is", "The weight of the statue is",
    "The zip code of the village is", "The account number of the farmer is", "The licence plate of the truck is",
    "The price of the piano is", "The ticket number of the singer is", "The serial number of the camera is",
    "The password of the computer is", "The combination of the padlock is", "The badge number of the guard is",
)  # fmt: skip


@TASKS.register("needle")
@dataclass
class Needle:
    """Find a number of five digits that the text told once, among others of other kinds.

    The context is read before the question is known, so that a score from past attention cannot know what will matter.
    Source: passkey retrieval, Mohtashami and Jaggi, arXiv 2305.16300. Differs in: the prose is natural, one context
    holds all its needles, each asked for from a fork, and each number belongs to another thing.

    Parameters
    ----------
    trials : int
        Contexts.
    needles : int
        In each context, at most 12.
    tokens : int
        Of a context.
    seed : int
        Of prose, places and numbers.
    """

    trials: int = 10
    needles: int = 10
    tokens: int = 1900
    seed: int = 0
    chance: ClassVar[float] = 1e-5

    def contexts(self, language: Language) -> Iterator[Context]:
        """Make the contexts one by one."""
        for trial in range(self.trials):
            rng = random.Random(f"needle {self.seed} {trial}")
            stems = rng.sample(FACTS, min(self.needles, len(FACTS)))
            questions = tuple(Question(f"\n\n{stem}", str(rng.randrange(10000, 100000))) for stem in stems)
            told = [f"{stem} {question.answer}." for stem, question in zip(stems, questions, strict=True)]
            used = len(language.more("\n\n".join(told)))
            prose = passage(rng, self.tokens - used, lambda text: len(language.more(text)))
            yield Context(interleave(rng, prose, told), questions)
