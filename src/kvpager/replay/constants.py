"""The constants of the placement score, and replays of recordings under any of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.replay.attention import capacity_units, warmup_steps
from kvpager.replay.fitting import Trials, sums_by_block
from kvpager.replay.linear import Features, Outcome, Script, replay_linear
from kvpager.replay.sweep import Source, load_stream

__all__ = ["NOTES", "NOTES_CUTS", "Constants", "Progress", "Text", "load_text", "try_values", "whole_weights"]

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Constants:
    """All constants of the placement score; the defaults are the notes', with E ranked.

    Parameters
    ----------
    weights : tuple of float
        Of R, E and N.
    alpha, half_life : float
        Of E and R.
    sink_tokens : int
        Zone of N.
    scale : str
        How E is normalised.
    cuts : tuple of float, optional
        Least score that stays, and that enters tier 0.
    """

    weights: tuple[float, float, float] = (0.25, 0.55, 0.20)
    alpha: float = 0.2
    half_life: float = 128.0
    sink_tokens: int = 100
    scale: str = "rank"
    cuts: tuple[float, float] | None = None

    @property
    def policy(self) -> str:
        """Written form of the policy that has them."""
        cuts = "" if self.cuts is None else f",cuts=[{self.cuts[0]!r},{self.cuts[1]!r}]"
        return (
            f"placement:weights=[{','.join(map(repr, self.weights))}],alpha={self.alpha!r},half_life={self.half_life!r},"
            f"sink_tokens={self.sink_tokens},scale={self.scale}{cuts}"
        )


NOTES = Constants(scale="raw")
"""The notes' values as written: E on its own scale, HBM filled by rank."""

NOTES_CUTS = (0.3, 0.6)
"""The notes' cuts."""


@dataclass(eq=False)
class Text:
    """A recording as calibration uses it.

    Parameters
    ----------
    path : Path
        Of the recording.
    script : Script
        Its demand.
    units : int
        Units that HBM holds.
    """

    path: Path
    script: Script
    units: int

    def __post_init__(self) -> None:
        self._scores: dict[tuple[float, str], Features] = {}

    @property
    def name(self) -> str:
        """What the recording calls its text."""
        return self.script.stream.recording.header.text

    @cached_property
    def warmup(self) -> int:
        """Steps not counted."""
        return warmup_steps(self.script.stream.recording.steps)

    @cached_property
    def accesses(self) -> NDArray[np.int64]:
        """Counted accesses by blocks of 16 steps."""
        return sums_by_block(self.script.accesses().sum(axis=1), self.warmup)

    def features(self, constants: Constants) -> Features:
        """R, E and N with these constants; the scores of the last alpha and scale are kept."""
        key = (constants.alpha, constants.scale)
        if key not in self._scores:
            self._scores = {key: Features(self.script, constants.alpha, constants.scale)}
        return self._scores[key].with_(half_life=constants.half_life, sink_tokens=constants.sink_tokens)

    def replay(self, constants: Constants, seed: int = 0) -> Outcome:
        """Replay the placement score with these constants."""
        cuts = constants.cuts or (-np.inf, np.inf)
        return replay_linear(self.features(constants), constants.weights, self.units, cuts=cuts, seed=seed)


def load_text(path: Path, selector: str, hbm_fraction: float) -> Text:
    """Read a recording and make its demand, for an HBM of `hbm_fraction` of all its KV."""
    stream = load_stream(Source(path, selector))
    return Text(path, Script(stream), capacity_units(stream, hbm_fraction, "global"))


def try_values(
    texts: Sequence[Text], values: Iterable[Any], of: Callable[[Any], Constants], *, jobs: int = 0, seed: int = 0,
    progress: Progress | None = None, what: str = "calibrate",
) -> Trials:  # fmt: skip
    """Replay each value of a constant on each text.

    Parameters
    ----------
    texts : sequence of Text
        Replayed, at their sizes.
    values : iterable
        What to try.
    of : callable
        Makes constants of a value.
    jobs : int
        Threads; 0 = one a core.
    seed : int
        Of the ties.
    progress : callable, optional
        Told (done, total, what).
    what : str
        Name of the trial.
    """
    values = list(values)
    tried = [of(value) for value in values]
    order = sorted(range(len(values)), key=lambda i: (tried[i].alpha, tried[i].scale))  # each EMA is followed once
    done, hits = 0, []
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        for text in texts:
            rows: dict[int, NDArray[np.int64]] = {}
            for _, group in groupby(order, key=lambda i: (tried[i].alpha, tried[i].scale)):
                numbers = list(group)
                text.features(tried[numbers[0]])  # once, before threads ask for it
                for i, outcome in zip(
                    numbers, pool.map(partial(text.replay, seed=seed), [tried[i] for i in numbers]), strict=True
                ):
                    rows[i] = sums_by_block(outcome.hits.sum(axis=1), text.warmup)
                    done += 1
                    if progress is not None:
                        progress(done, len(values) * len(texts), what)
            hits.append(np.stack([rows[i] for i in range(len(values))]))
    return Trials(values, hits, [text.accesses for text in texts])


def whole_weights(values: Sequence[float]) -> tuple[float, float, float]:
    """Round three weights to four digits; what that leaves over goes to the largest, so that they still sum to 1."""
    found = [round(float(value), 4) for value in values]
    largest = int(np.argmax(found))
    found[largest] = round(found[largest] + 1 - sum(found), 4)
    first, second, third = found
    return first, second, third
