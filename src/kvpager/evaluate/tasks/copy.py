"""Random strings of words, of which the beginning is given again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvpager.evaluate.base import TASKS, Context, Language, Question
from kvpager.evaluate.prose import interleave, passage

__all__ = ["Copy"]

WORDS = (
    "apple", "river", "stone", "cloud", "horse", "paper", "green", "night", "table", "glass", "bread", "chair", "ocean",
    "tiger", "lemon", "mouse", "piano", "train", "sugar", "wheel", "candle", "garden", "silver", "window", "butter",
    "forest", "bridge", "pencil", "rabbit", "pocket", "summer", "island",
)  # fmt: skip


@TASKS.register("copy")
@dataclass
class Copy:
    """Go on with a string of random words that stands far above, from its first words.

    Nothing but the far copy can tell the next word, and even the smallest models copy.
    Source: induction, Olsson et al., arXiv 2209.11895. Differs in: the strings stand apart in natural prose.

    Parameters
    ----------
    trials : int
        Contexts.
    strings : int
        In each context, each asked for from a fork.
    given, asked : int
        Words of each that the question repeats, and that the answer must add.
    tokens : int
        Of a context.
    seed : int
        Of prose, places and words.
    """

    trials: int = 4
    strings: int = 10
    given: int = 4
    asked: int = 4
    tokens: int = 1900
    seed: int = 0
    chance: ClassVar[float] = 1e-5

    def contexts(self, language: Language) -> Iterator[Context]:
        """Make the contexts one by one."""
        for trial in range(self.trials):
            rng = random.Random(f"copy {self.seed} {trial}")
            strings = [[rng.choice(WORDS) for _ in range(self.given + self.asked)] for _ in range(self.strings)]
            told = [f"{' '.join(words)}." for words in strings]
            questions = tuple(
                Question("\n\n" + " ".join(words[: self.given]), " ".join(words[self.given :])) for words in strings
            )
            used = len(language.more("\n\n".join(told)))
            prose = passage(rng, self.tokens - used, lambda text: len(language.more(text)))
            yield Context(interleave(rng, prose, told), questions)
