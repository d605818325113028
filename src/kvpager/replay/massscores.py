"""Moving averages of attention mass through a whole stream, compiled.

`kvpager.policies.scores.MassEMA` computes them tick by tick for any clock and granularity; this knows units of heads and the
(step, layer) clock, and gives the same numbers to the bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.policies.scores import check_share, normalise
from kvpager.replay.stream import Stream

__all__ = ["mass_scores", "scaled_scores"]


def mass_scores(stream: Stream, alpha: float) -> NDArray[np.float64]:
    """Follow the EMA through prefill and steps.

    Parameters
    ----------
    stream : Stream
        Of units of KV heads, with the layer clock.
    alpha : float
        In (0, 1].

    Returns
    -------
    float64 [layers + ticks, blocks * heads]
        Scores of a tick's layer after the tick; 0 for blocks that do not exist yet.
    """
    check_share("alpha", alpha)
    seen = [*stream.prefill, *(ask.seen for ask in stream.asks)]
    layers, heads = len(stream.prefill), stream.recording.header.num_kv_heads
    units = np.concatenate([one.units for one in seen])
    mass = np.concatenate([one.mass for one in seen]).astype(np.float64)
    ends = np.cumsum([0, *(len(one.units) for one in seen)])
    rows = np.zeros((len(seen), stream.recording.blocks * heads))
    _follow(units // (layers * heads) * heads + units % heads, mass, ends, layers, alpha, rows)
    return rows


def scaled_scores(stream: Stream, scores: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    """Bring every row of `mass_scores` to a scale, as `normalise` does with the scores of one tick's layer.

    Parameters
    ----------
    stream : Stream
        Of the scores.
    scores : float64 [layers + ticks, blocks * heads]
        From `mass_scores`.
    scale : {"raw", "rank", "max", "uniform"}
        See `normalise`.
    """
    if scale == "raw":
        return scores
    layers, heads = len(stream.prefill), stream.recording.header.num_kv_heads
    first = -(-stream.recording.header.context_tokens // stream.recording.header.block_size)
    exist = np.repeat([first, *(stream.recording.open_block(step) + 1 for step in range(stream.recording.steps))], layers)
    found = np.zeros_like(scores)
    if scale == "rank":
        _rank(scores, exist, layers, heads, found)
        return found
    for blocks in np.unique(exist):
        here = exist == blocks
        each = scores[here, : blocks * heads].reshape(-1, blocks, heads).transpose(0, 2, 1)
        flat = np.ascontiguousarray(each).reshape(-1, blocks)
        scaled = normalise(flat, scale)
        found[here, : blocks * heads] = scaled.reshape(each.shape).transpose(0, 2, 1).reshape(-1, blocks * heads)
    return found


@numba.njit(nogil=True, cache=True)
def _follow(columns: Any, mass: Any, ends: Any, layers: Any, alpha: Any, rows: Any) -> None:
    weight = np.ones((layers, rows.shape[1]))  # of the next mass: 1 for a unit's first
    for row in range(len(rows)):
        layer = row % layers
        if row >= layers:
            rows[row] = rows[row - layers] * (1 - alpha)
        for i in range(ends[row], ends[row + 1]):
            rows[row, columns[i]] += weight[layer, columns[i]] * mass[i]
            weight[layer, columns[i]] = alpha


@numba.njit(nogil=True, cache=True)
def _rank(scores: Any, exist: Any, layers: Any, heads: Any, found: Any) -> None:
    """Share of the other scores of a head that are smaller; each head's order is kept, since a tick changes little of it."""
    order = np.empty((layers, heads, scores.shape[1] // heads), np.int64)
    order[:] = np.arange(order.shape[2])
    for row in range(len(scores)):
        most, place = max(exist[row] - 1, 1), 0
        for head in range(heads):
            score, by = scores[row, head::heads], order[row % layers, head]
            for i in range(1, exist[row]):  # sorting by insertion
                block, at = by[i], i
                while at > 0 and score[by[at - 1]] > score[block]:
                    by[at] = by[at - 1]
                    at -= 1
                by[at] = block
            for i in range(exist[row]):
                if i == 0 or score[by[i]] != score[by[i - 1]]:
                    place = i
                found[row, by[i] * heads + head] = place / most
