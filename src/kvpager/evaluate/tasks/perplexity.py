"""How well the next tokens of running text are foretold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvpager.evaluate.base import TASKS, Context, Language
from kvpager.evaluate.prose import passage

__all__ = ["Perplexity"]


@TASKS.register("perplexity")
@dataclass
class Perplexity:
    """Foretell running text, token by token: perplexity, and the divergence of each step from dense attention.

    Mild by nature: most tokens need nothing far. It finds what is broken, not what is lost.
    Source: the usual measure of language models; against dense attention, as in Quest, arXiv 2406.10774.

    Parameters
    ----------
    trials : int
        Contexts.
    tokens : int
        Of a context.
    sequel : int
        Tokens foretold after each.
    seed : int
        Of the choice of prose.
    """

    trials: int = 4
    tokens: int = 1900
    sequel: int = 64
    seed: int = 0
    chance: ClassVar[float] = 0.0

    def contexts(self, language: Language) -> Iterator[Context]:
        """Make the contexts one by one."""
        for trial in range(self.trials):
            rng = random.Random(f"perplexity {self.seed} {trial}")
            prose = "\n\n".join(passage(rng, self.tokens + self.sequel, lambda text: len(language.more(text))))
            tokens = language.more(prose)
            cut = max(1, len(tokens) - self.sequel)
            yield Context(language.text(tokens[:cut]), sequel=language.text(tokens[cut:]))
