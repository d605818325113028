"""What an evaluation is made of: runners that decode, tasks that ask, and texts as token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.registry import Registry

__all__ = ["TASKS", "Context", "Language", "Question", "Runner", "Task"]


class Runner(Protocol):
    """Decodes one sequence. Context and turns are read exactly; single tokens are read as the runner reads."""

    def start(self, tokens: Sequence[int]) -> None:
        """Forget everything and prefill `tokens`, with dense attention."""
        ...

    def fork(self) -> Runner:
        """Return a runner that goes on from here and leaves this one as it is."""
        ...

    def turn(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` in one call, as a session takes what its user says; return the logits after the last."""
        ...

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append `tokens` one by one; return the logits after each, ``[n, vocabulary]``."""
        ...

    def generate(self, count: int) -> list[int]:
        """Append `count` tokens of greatest logit after what was fed last, and return them."""
        ...

    def facts(self) -> dict[str, float]:
        """Return what this runner knows of its steps since `fork` or `start`, e.g. ``{"read_mass": 0.93}``."""
        ...

    def close(self) -> None:
        """Give back what this runner holds; it is not used again."""
        ...


class Language(Protocol):
    """Text to token ids and back."""

    def opening(self, text: str) -> list[int]:
        """Return the ids of a text that opens a sequence, with what the tokenizer puts before it."""
        ...

    def more(self, text: str) -> list[int]:
        """Return the ids of a text that goes on."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens`."""
        ...


class Question(NamedTuple):
    """Asked after its context; right if what is generated starts with the answer."""

    text: str
    answer: str


@dataclass(frozen=True)
class Context:
    """One text, and what is tried after it, each time from a fork.

    Attributes
    ----------
    text : str
        Prefilled.
    questions : tuple of Question
        Each asked alone.
    sequel : str
        Fed token by token for its logits; "" for none.
    """

    text: str
    questions: tuple[Question, ...] = ()
    sequel: str = ""


class Task(Protocol):
    """Makes contexts, the same ones for the same settings; a dataclass whose fields are its settings."""

    chance: ClassVar[float]
    """Share of right answers by guessing."""

    def contexts(self, language: Language) -> Iterator[Context]:
        """Make the contexts one by one."""
        ...


TASKS: Registry[Callable[..., Any]] = Registry("tasks", "kvpager.evaluate.tasks")
