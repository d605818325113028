"""Counting a replay: raw answers are collected tick by tick and added up once, at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, HBM, Grant, Move
from kvpager.replay.stream import Ask, Stream

__all__ = ["Counts", "Tally"]


@dataclass
class Counts:
    """What one run counted after the warm-up.

    Attributes
    ----------
    steps : int
        Decode steps counted.
    accesses, hits, early_hits : int
        (unit, KV head) pairs that asked; those whose unit was in HBM; those hits that a prefetch is owed.
    unit_accesses, unit_hits, prefetched_used : int
        The same, counting each unit of a tick once.
    served : int64 [6]
        Accesses by tier, `RECOMPUTE` and `FIRST_TOUCH` (law 1).
    heads, heads_complete : int
        (step, layer, KV head) triples, and those with nothing missing.
    fetched, kept, prefetched, late : int
        Units read for a demand; of these, kept; units read ahead; of these, asked for while still under way.
    mass : float64 [layers * kv_heads]
        Attention mass in HBM at judgement, open block included, summed over the steps.
    by_step : float64 [3, steps]
        Accesses, hits, and mean mass of a head, of each step.
    """

    steps: int
    accesses: int
    hits: int
    early_hits: int
    unit_accesses: int
    unit_hits: int
    prefetched_used: int
    served: NDArray[np.int64]
    heads: int
    heads_complete: int
    fetched: int
    kept: int
    prefetched: int
    late: int
    mass: NDArray[np.float64]
    by_step: NDArray[np.float64]


class Tally:
    """Collects what a replay answers after the warm-up.

    Parameters
    ----------
    stream : Stream
        What is replayed.
    warmup : int
        Steps not counted.
    """

    def __init__(self, stream: Stream, warmup: int) -> None:
        self._stream, self._warmup = stream, warmup
        self._asks: list[Ask] = []
        self._grants: list[Grant] = []
        self._resident: list[NDArray[np.bool_]] = []
        self._moved = {"demand": 0, "keep": 0, "prefetch": 0}

    def judged(self, ask: Ask, grant: Grant, resident: NDArray[np.bool_]) -> None:
        """Note one tick: its answer, and which units of its layer were in HBM, bool [blocks * units a block]."""
        if ask.tick.step >= self._warmup:
            self._asks.append(ask)
            self._grants.append(grant)
            self._resident.append(resident)

    def moved(self, step: int, moves: Sequence[Move]) -> None:
        """Note moves of a tick of `step`."""
        if step >= self._warmup:
            for move in moves:
                if move.why in self._moved:
                    self._moved[move.why] += len(move.units)

    def counts(self) -> Counts:
        """Add up."""
        asks, header = self._asks, self._stream.recording.header
        tier = _join([grant.tier for grant in self._grants], np.int8)
        early = _join([grant.early for grant in self._grants], np.bool_)
        weight = _join([ask.asks for ask in asks], np.int32).astype(np.int64)
        hit = tier <= HBM
        offsets = np.cumsum([0, *[len(ask.units) for ask in asks]])
        all_heads = len(header.layers) * header.num_kv_heads
        head_of_ask = _join([ask.tick.step * all_heads + ask.head_of_ask for ask in asks], np.int64)
        unit_of_ask = _join([ask.unit_of_ask + at for ask, at in zip(asks, offsets[:-1], strict=True)], np.int64)
        step_of_ask = np.array([ask.tick.step for ask in asks], np.intp) - self._warmup
        steps = len(np.unique(step_of_ask))
        step = np.repeat(step_of_ask, np.diff(offsets))
        mass = self._mass()
        return Counts(
            steps=steps,
            accesses=int(weight.sum()),
            hits=int(weight[hit].sum()),
            early_hits=int(weight[early].sum()),
            unit_accesses=len(hit),
            unit_hits=int(np.count_nonzero(hit)),
            prefetched_used=int(np.count_nonzero(early)),
            served=np.bincount(tier, weights=weight, minlength=6).astype(np.int64),
            heads=steps * all_heads,
            heads_complete=steps * all_heads - len(np.unique(head_of_ask[~hit[unit_of_ask]])),
            fetched=self._moved["demand"],
            kept=self._moved["keep"],
            prefetched=self._moved["prefetch"],
            late=sum(len(grant.late) for grant in self._grants),
            mass=mass.sum(axis=0).ravel(),
            by_step=np.stack(
                [
                    np.bincount(step, weights=weight, minlength=steps),
                    np.bincount(step, weights=weight * hit, minlength=steps),
                    mass.mean(axis=(1, 2)),
                ]
            ),
        )

    def _mass(self) -> NDArray[np.float64]:
        """Mass of what was in HBM at each step, ``[steps, layer, kv_head]``."""
        recording = self._stream.recording
        layers, heads = recording.mass.shape[1:3]
        width = self._stream.heads_per_layer
        total = np.zeros((max(recording.steps - self._warmup, 0), layers, heads))
        for ask, resident in zip(self._asks, self._resident, strict=True):
            blocks = recording.open_block(ask.tick.step) + 1
            here = slice(None) if ask.tick.layer == ALL_LAYERS else slice(ask.tick.layer, ask.tick.layer + 1)
            mass = self._stream.mass[ask.tick.step, here, :, :blocks]
            held = resident.reshape(-1, mass.shape[0], width)[:blocks].transpose(1, 2, 0)
            total[ask.tick.step - self._warmup, here] = np.where(held, mass, 0).sum(axis=2, dtype=np.float64)
        return total


def _join(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)
