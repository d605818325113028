"""Replays of linear scores ``P = w_R R + w_E E + w_N N``: the features are made once, each weighting is a compiled loop.

With scores that survive eviction, recency, EMA and sink zone do not depend on what is resident. So a sweep over weights
shares them, and only the choice of what stays is repeated. The loop keeps the Pager's order of calls and its ties: it has
exactly the hits of `Replay` with the policy ``placement``, which the tests hold it against. It knows the global pool, units
of KV heads and the (step, layer) clock; no prefetch, no tier 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.replay.linearloop import loop
from kvpager.replay.massscores import mass_scores, scaled_scores
from kvpager.replay.stream import Stream

__all__ = ["Features", "Outcome", "Script", "replay_linear"]


class Outcome(NamedTuple):
    """What a replay counted, step by step, warm-up included.

    Attributes
    ----------
    hits : int64 [steps, groups]
        Accesses whose unit was in HBM, by group of accesses.
    moves : int64 [steps]
        Fetched units that were kept.
    held : int64 [steps]
        Units in HBM at the step's end.
    pinned : int64 [steps]
        Of these, those whose score reaches the second cut.
    """

    hits: NDArray[np.int64]
    moves: NDArray[np.int64]
    held: NDArray[np.int64]
    pinned: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Script:
    """The demand of a stream as flat arrays.

    Parameters
    ----------
    stream : Stream
        Of units of KV heads, with the layer clock.

    Raises
    ------
    BadInput
        For another granularity or clock.
    """

    stream: Stream

    def __post_init__(self) -> None:
        """Refuse what the loop does not know."""
        setting = self.stream.setting
        if setting.granularity != "head" or setting.clock != "layer":
            raise BadInput(
                f"linear scores are replayed for units of heads under the layer clock, not for {setting.granularity!r} and "
                f"{setting.clock!r}: use `Replay`"
            )

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, layers and KV heads: unit ids count in this order."""
        recording = self.stream.recording
        return recording.blocks, len(recording.header.layers), recording.header.num_kv_heads

    @cached_property
    def units(self) -> NDArray[np.int32]:
        """Demanded units, in time order."""
        return np.concatenate([ask.units for ask in self.stream.asks])

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where each tick's units begin, and a last entry where all end."""
        return np.cumsum([0, *[len(ask.units) for ask in self.stream.asks]])

    @cached_property
    def step_of(self) -> NDArray[np.int64]:
        """Step of each access."""
        return np.repeat([ask.tick.step for ask in self.stream.asks], np.diff(self.ends))

    @cached_property
    def pauses(self) -> NDArray[np.int64]:
        """Steps since the unit of each access was last asked for or written."""
        found = np.empty(len(self.units), np.int64)
        last = self.first_use
        for step, here in enumerate(np.split(np.arange(len(self.units)), self.ends[self.shape[1] : -1 : self.shape[1]])):
            found[here] = step - last[self.units[here]]
            last[self.units[here]] = step
        return found

    @property
    def first_use(self) -> NDArray[np.int64]:
        """Step in which each unit was written: blocks of the prefill one a step before it ended, int64 [units]."""
        blocks, layers, heads = self.shape
        header = self.stream.recording.header
        complete = header.context_tokens // header.block_size
        block = np.arange(blocks)
        born = np.where(block < complete, block - complete, block * header.block_size - header.context_tokens)
        return np.maximum(born, np.where(block < complete, -np.inf, -1)).astype(np.int64).repeat(layers * heads)

    def accesses(self, groups: NDArray[np.int8] | None = None) -> NDArray[np.int64]:
        """Accesses by step and group, int64 [steps, groups]."""
        of = np.zeros(len(self.units), np.int8) if groups is None else groups
        wide = int(of.max(initial=0)) + 1
        counts = np.bincount(self.step_of * wide + of, minlength=self.stream.recording.steps * wide)
        return counts.reshape(-1, wide).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Features:
    """Recency, EMA and sink zone of every unit at every tick, as the policy ``placement`` computes them.

    Parameters
    ----------
    script : Script
        Whose demand and observations they follow.
    alpha : float
        Of the EMA.
    scale : {"raw", "rank", "max", "uniform"}
        How E is normalised.
    half_life : float
        Of R, in steps.
    sink_tokens : int
        Size of the zone that N marks.
    scores : float64 [layers + ticks, blocks * heads], optional
        E, where it is known already: it depends on `alpha` and `scale` alone.
    """

    script: Script
    alpha: float = 0.2
    scale: str = "rank"
    half_life: float = 128.0
    sink_tokens: int = 100
    scores: NDArray[np.float64] | None = None

    @cached_property
    def ema(self) -> NDArray[np.float64]:
        """E of a tick's layer after the tick, one row a layer of the prefill, then one a tick."""
        if self.scores is not None:
            return self.scores
        stream = self.script.stream
        return scaled_scores(stream, mass_scores(stream, self.alpha), self.scale)

    @cached_property
    def recency(self) -> NDArray[np.float64]:
        """R by steps since the last access."""
        blocks, _, _ = self.script.shape
        most = blocks + self.script.stream.recording.steps + 2
        powers: NDArray[np.float64] = 2.0 ** (-np.arange(most) / self.half_life)
        return powers

    @cached_property
    def sink(self) -> NDArray[np.bool_]:
        """N of each unit."""
        blocks, layers, heads = self.script.shape
        return (np.arange(blocks) * self.script.stream.recording.header.block_size < self.sink_tokens).repeat(layers * heads)

    def with_(self, *, half_life: float | None = None, sink_tokens: int | None = None) -> Features:
        """Return features of the same E with another half-life or zone."""
        return Features(
            self.script, self.alpha, self.scale, half_life or self.half_life,
            self.sink_tokens if sink_tokens is None else sink_tokens, self.ema,
        )  # fmt: skip

    def steps(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield each step and the features at its end, float64 [3, units]: R, E and N of all units that exist."""
        last, cuts = self.script.first_use, self.script.ends[:: self.script.shape[1]]
        for step in range(self.script.stream.recording.steps):
            last[self.script.units[cuts[step] : cuts[step + 1]]] = step
            yield step, self._parts(step, last)

    def at_end(self) -> NDArray[np.float64]:
        """R, E and N of all units after the last step, float64 [3, units]."""
        last = self.script.first_use
        last[self.script.units] = self.script.step_of  # in time order: a unit's last access stays
        return self._parts(self.script.stream.recording.steps - 1, last)

    def _parts(self, step: int, last: NDArray[np.int64]) -> NDArray[np.float64]:
        blocks, layers, heads = self.script.shape
        exist = (self.script.stream.recording.open_block(step) + 1) * layers * heads
        rows = self.ema[layers * (step + 1) : layers * (step + 2)]
        scores = rows.reshape(layers, blocks, heads).transpose(1, 0, 2).ravel()
        return np.stack([self.recency[step - last[:exist]], scores[:exist], self.sink[:exist]])


def replay_linear(
    features: Features,
    weights: Sequence[float],
    units: int,
    *,
    cuts: tuple[float, float] = (-np.inf, np.inf),
    groups: NDArray[np.int8] | None = None,
    seed: int = 0,
) -> Outcome:
    """Replay the placement score with `weights` in one global pool.

    Parameters
    ----------
    features : Features
        R, E and N.
    weights : sequence of float
        Three: of R, E and N.
    units : int
        Units that HBM holds, from `kvpager.replay.attention.capacity_units`.
    cuts : tuple of float
        Least score that stays, and that counts as tier 0.
    groups : int8 [accesses], optional
        Group of each access, 0 and up, to count hits apart.
    seed : int
        Of the ties.
    """
    script = features.script
    header, steps = script.stream.recording.header, script.stream.recording.steps
    of = np.zeros(len(script.units), np.int8) if groups is None else groups
    counts = np.zeros((3, steps), np.int64)
    hits = np.zeros((steps, int(of.max(initial=0)) + 1), np.int64)
    mask = (1 << 64) - 1
    salts = [(seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03) & mask for step in range(-1, steps)]
    loop(
        script.units, script.ends, of, features.ema, features.recency, features.sink, script.first_use,
        np.array([*weights, *cuts], np.float64), np.array(salts, np.uint64),
        np.array([*script.shape, header.context_tokens, header.block_size, units], np.int64), hits, counts,
    )  # fmt: skip
    return Outcome(hits, *counts)
