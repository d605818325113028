"""Replays of the chosen recording, fast enough to follow a slider: each piece is remembered by what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.evidence import Evidence
from kvpager.explorer.choices import Choices
from kvpager.explorer.sources import Stamp, recording, trace
from kvpager.registry import configure
from kvpager.replay.attention import capacity_units, warmup_steps
from kvpager.replay.bounds import dense_bound
from kvpager.replay.constants import Constants
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.linear import Features, Outcome, Script, replay_linear
from kvpager.replay.massscores import mass_scores, scaled_scores
from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import Stream, make_stream
from kvpager.replay.sweep import Source
from kvpager.selectors import SELECTORS

__all__ = [
    "PREFETCHERS", "SIMULATED", "VOLUMES", "at_once", "by_layer", "marked", "placed", "prefetched", "room", "row",
    "scores_at_end", "script", "warmup",
]  # fmt: skip

SIMULATED = (Evidence.SIMULATED, Evidence.MEASURED)
"""How the counts of a replayed recording are known."""

PREFETCHERS = ("blend", "history")
"""The notes', and the best that is known."""

VOLUMES = (0.01, 0.05, 0.25)
"""What is fetched ahead a step, as a share of HBM, at most: the notes' first."""


def script(choices: Choices) -> Script:
    """The chosen recording's demand, in which a head asks for what holds 95 % of its mass.

    Raises
    ------
    NoTrace, TraceError
        As `recording` raises them.
    """
    return _script(*trace(choices))


@lru_cache(maxsize=1)
def _script(path: Path, changed: Stamp) -> Script:
    return Script(make_stream(recording(Choices(trace=str(path))), configure(SELECTORS, Source.selector)))


def room(choices: Choices) -> int:
    """Units that HBM holds, in one pool; raises `CapacityError` for a size that is too small."""
    return capacity_units(script(choices).stream, choices.hbm, "global")


def warmup(asked: Script) -> int:
    """Steps that are replayed, and not counted."""
    return warmup_steps(asked.stream.recording.steps)


@lru_cache(maxsize=64)
def placed(asked: Script, constants: Constants, units: int) -> Outcome:
    """Replay the placement score: the policy that `constants` write out."""
    features = _features(asked, constants)
    return replay_linear(features, constants.weights, units, cuts=constants.cuts or (-np.inf, np.inf))


def scores_at_end(asked: Script, constants: Constants) -> NDArray[np.float64]:
    """The placement score of every unit after the last step, float64 [units]."""
    scores: NDArray[np.float64] = np.asarray(constants.weights) @ _features(asked, constants).at_end()
    return scores


def _features(asked: Script, constants: Constants) -> Features:
    scores = _scores(asked, constants.alpha, constants.scale)
    return Features(asked, constants.alpha, constants.scale, constants.half_life, constants.sink_tokens, scores)


def _by_head(asked: Script, alpha: float) -> NDArray[np.float64]:
    """EMA of each head's own mass, row by tick, float64 [layers + ticks, blocks, heads]."""
    blocks, _, heads = asked.shape
    return _scores(asked, alpha, "raw").reshape(-1, blocks, heads)


def marked(asked: Script, step: int, alpha: float, share: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores of the complete blocks at a step's end, and whether each head has the block among its hottest `share`.

    Returns
    -------
    tuple
        float64 and bool [blocks, layers * heads].
    """
    _, layers, _ = asked.shape
    rows = _by_head(asked, alpha)[layers * (step + 1) : layers * (step + 2), : asked.stream.recording.open_block(step)]
    scores = rows.transpose(1, 0, 2).reshape(rows.shape[1], -1)
    last = len(scores) - max(1, round(share * len(scores)))
    return scores, (scores >= np.partition(scores, last, axis=0)[last]) & (scores > 0)


@lru_cache(maxsize=64)
def by_layer(asked: Script, alpha: float, fold: str, units: int) -> Outcome:
    """Replay the EMA where a block's heads of a layer share one score: ``"max"`` or ``"mean"``; ``"own"`` if they do not."""
    scores = _scores(asked, alpha, "raw") if fold == "own" else _folded(asked, alpha, fold)
    return replay_linear(Features(asked, alpha, "raw", scores=scores), (0.0, 1.0, 0.0), units)


@lru_cache(maxsize=2)
def _folded(asked: Script, alpha: float, fold: str) -> NDArray[np.float64]:
    """EMA where a layer's heads share one score, float64 [layers + ticks, blocks * heads]."""
    scores = _by_head(asked, alpha)
    heads = scores.shape[2]
    whole = np.maximum.reduce([scores[:, :, head] for head in range(heads)]) if fold == "max" else scores.mean(axis=2)
    return np.repeat(whole, heads, axis=1)


@lru_cache(maxsize=4)
def _scores(asked: Script, alpha: float, scale: str) -> NDArray[np.float64]:
    return (
        mass_scores(asked.stream, alpha) if scale == "raw" else scaled_scores(asked.stream, _scores(asked, alpha, "raw"), scale)
    )


def at_once(replays: Sequence[Callable[[], Outcome]]) -> list[Outcome]:
    """Run replays at the same time: their compiled loops hold no lock."""
    with ThreadPoolExecutor(len(replays)) as pool:
        return [one.result() for one in [pool.submit(replay) for replay in replays]]


def row(asked: Script, outcome: Outcome, units: int) -> dict[str, Any]:
    """What ``kvpager replay`` prints of such a run."""
    first = warmup(asked)
    accesses, hits = int(asked.accesses()[first:].sum()), int(outcome.hits[first:].sum())
    return {
        "capacity_units": units,
        "accesses": accesses,
        "block_hits": hits,
        "block_hit_ratio": hits / max(accesses, 1),
        "moves_per_step": float(outcome.moves[first:].mean()),
        "pinned_share": float(outcome.pinned[-1] / units),
        "dense_bound": dense_bound(asked.stream, units, first),
    }


def prefetched(asked: Script) -> dict[tuple[str, float], dict[str, Any]]:
    """Replay each of `PREFETCHERS` at each of `VOLUMES`, and none, over the recommended placement at the notes' HBM.

    Takes seconds, once a recording; what a slider moves among is there then.

    Returns
    -------
    dict
        Rows as ``kvpager replay`` prints them, by prefetcher and volume; of none under ``("none", 0.0)``.
    """
    return _prefetched(asked.stream)


@lru_cache(maxsize=2)
def _prefetched(stream: Stream) -> dict[tuple[str, float], dict[str, Any]]:
    asks: list[tuple[str, float]] = [("none", 0.0), *((name, volume) for name in PREFETCHERS for volume in VOLUMES)]
    return {
        (name, volume): run_case(
            stream,
            Case("blend", NOTE_HBM_FRACTION, prefetcher=None if name == "none" else name, prefetch_share=volume, bound=False),
        )
        for name, volume in asks
    }
