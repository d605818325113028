"""Where attention mass lies: by age, by distance, and in how few blocks.

Two resolutions. *Token level*: the mass of token ranges that the recorder summed per query head before it
threw the row away (tokens 0-3, the newest 10 %, distance bins). *Block level*: the smallest set of blocks
that holds 95, 97 or 99 % of a KV head's mass. All means are over decode steps first, then over heads, each
head counting the same. Left out: the prefill, and anything about what dropping the rest does to the output.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import TraceError
from kvpager.evidence import Evidence
from kvpager.traces.recording import ABSOLUTE_EDGES, RELATIVE_BINS, SPECIALS, Recording

__all__ = ["COVERAGE_SHARES", "TARGETS", "blocks_needed", "evidence_of", "profile", "special_mass"]

Floats = NDArray[np.float64]

TARGETS = (0.95, 0.97, 0.99)
"""Shares of a KV head's mass whose smallest block set is counted."""

COVERAGE_SHARES = (0.005, 0.01, 0.02, 0.03, 0.054, 0.0684, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
"""Shares of the blocks at which the coverage curve is given."""

_HIGH = 0.8
"""The note's share of mass on the newest 10 % of the tokens."""


def profile(recording: Recording, first_step: int = 0) -> dict[str, Any]:
    """Profile where a recording's attention mass lies.

    Parameters
    ----------
    recording : Recording
        With token-level masses; its steps from `first_step` on are used.
    first_step : int
        Steps before it are ignored (a warm-up); at least one step must remain.

    Returns
    -------
    dict
        ``newest_10_percent``, the same ``_without_first_4`` (mass of both summed over heads and steps, then divided:
        mass-weighted), ``first_1 first_4 first_100 last_200``, ``q_heads_newest_10_at_least_80``; ``relative`` and
        ``absolute`` (mean and per layer), ``by_layer``, ``blocks_needed`` per target, ``coverage``. Masses and shares
        are 0..1; layers are the model's own numbers.

    Raises
    ------
    TraceError
        If the recording has no token-level masses, or no step is left.
    """
    special = special_mass(recording, first_step)
    header = recording.header
    heads = special.mean(axis=0)
    return {
        "evidence": evidence_of(recording).label,
        "model": header.model,
        "text": header.text,
        "context_tokens": header.context_tokens,
        "steps": recording.steps - first_step,
        "first_step": first_step,
        "layers": list(header.layers),
        "q_heads": len(header.layers) * header.num_q_heads,
        "kv_heads": len(header.layers) * header.num_kv_heads,
        "block_size": header.block_size,
        "blocks": recording.blocks,
        **_ages(heads),
        "q_heads_newest_10_at_least_80": _round((heads[..., -1] >= _HIGH).mean()),
        "by_layer": [{"layer": layer, **_ages(rows)} for layer, rows in zip(header.layers, heads, strict=True)],
        "relative": _binned(recording.relative, first_step, [i / RELATIVE_BINS for i in range(RELATIVE_BINS + 1)]),
        "absolute": _binned(recording.absolute, first_step, list(ABSOLUTE_EDGES)),
        **_blocks(recording, first_step),
    }


def special_mass(recording: Recording, first_step: int = 0) -> Floats:
    """Return the recorded masses of `SPECIALS`, float64 [steps, layer, q_head, special], from `first_step` on.

    Raises
    ------
    TraceError
        If the recording has none, or no step is left.
    """
    if recording.special is None:
        raise TraceError(f"recording of {recording.header.model!r} has no token-level masses ('special'): record it again")
    if not 0 <= first_step < recording.steps:
        raise TraceError(
            f"first step {first_step} leaves nothing of the {recording.steps} steps recorded of {recording.header.model!r}: "
            f"choose one below {recording.steps} or record more steps"
        )
    return recording.special[first_step:].astype(np.float64)


def evidence_of(recording: Recording) -> Evidence:
    """Return how figures of `recording` are known: measured needs machine, versions, date and command (law 9)."""
    header = recording.header
    known = header.machine and header.versions and header.recorded and header.command
    return Evidence.MEASURED if known else Evidence.ILLUSTRATIVE


def blocks_needed(mass: Floats, target: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Find each row's smallest set of blocks that holds `target` of the row's mass.

    Parameters
    ----------
    mass : float64 [..., block]
        Masses >= 0; rows need not sum to 1.
    target : float
        Share of the row's own sum, in (0, 1].

    Returns
    -------
    counts : int64 [...]
        Size of the set.
    chosen : bool [..., block]
        The set; of equal masses the newer block is taken first.
    """
    order = np.argsort(mass, axis=-1, kind="stable")[..., ::-1]
    running = np.take_along_axis(mass, order, axis=-1).cumsum(axis=-1)
    enough = running >= target * running[..., -1:] * (1 - 1e-12)
    counts = enough.argmax(axis=-1) + 1
    chosen = np.empty(mass.shape, np.bool_)
    np.put_along_axis(chosen, order, np.arange(mass.shape[-1]) < counts[..., None], axis=-1)
    return counts, chosen


def _ages(heads: Floats) -> dict[str, float]:
    """Means over heads of the special masses, float64 [..., special]."""
    mean = dict(zip(SPECIALS, heads.reshape(-1, len(SPECIALS)).mean(axis=0).tolist(), strict=True))
    rest = 1 - mean["first_4"]
    mean["newest_10_percent_without_first_4"] = mean["newest_10_percent"] / rest if rest > 0 else 0.0
    return {name: _round(value) for name, value in mean.items()}


def _binned(array: NDArray[np.float16] | None, first_step: int, edges: list[float] | list[int]) -> dict[str, Any]:
    if array is None:
        raise TraceError("the recording has no mass by distance ('relative', 'absolute'): record it again")
    layers = array[first_step:].astype(np.float64).mean(axis=(0, 2))
    return {
        "edges": edges,
        "mean": [_round(v, 6) for v in layers.mean(axis=0)],
        "by_layer": [[_round(v, 6) for v in row] for row in layers],
    }


def _blocks(recording: Recording, first_step: int) -> dict[str, Any]:
    """Smallest sets, their unions and the coverage curve; one step in memory at a time."""
    counts: dict[float, list[NDArray[np.int64]]] = {target: [] for target in TARGETS}
    unions: dict[float, list[tuple[float, float]]] = {target: [] for target in TARGETS}
    existing, curves = [], []
    for step in range(first_step, recording.steps):
        blocks = recording.open_block(step) + 1
        mass = recording.mass[step, ..., :blocks].astype(np.float64)
        existing.append(blocks)
        curves.append(_coverage(mass))
        for target in TARGETS:
            count, chosen = blocks_needed(mass, target)
            counts[target].append(count)
            unions[target].append((chosen.any(axis=1).mean(), chosen.any(axis=(0, 1)).mean()))
    size = np.array(existing)[:, None, None]
    curve = np.mean(curves, axis=0)
    return {
        "blocks_needed": {f"{t:g}": _need(np.array(counts[t]), size, np.mean(unions[t], axis=0)) for t in TARGETS},
        "coverage": {
            "share": list(COVERAGE_SHARES),
            "mean": [_round(v) for v in curve.mean(axis=(0, 1))],
            "p5_head": [_round(v) for v in np.percentile(curve, 5, axis=(0, 1))],
        },
    }


def _need(counts: NDArray[np.int64], existing: NDArray[np.int64], unions: Floats) -> dict[str, float]:
    """Statistics over (step, layer, KV head); `counts` int64 [steps, layer, kv_head]."""
    share = counts / existing
    return {
        "mean": _round(counts.mean()),
        "median": _round(np.median(counts)),
        "p90": _round(np.percentile(counts, 90)),
        "mean_share": _round(share.mean()),
        "median_share": _round(np.median(share)),
        "p90_share": _round(np.percentile(share, 90)),
        "layer_union_share": _round(unions[0]),
        "all_union_share": _round(unions[1]),
    }


def _coverage(mass: Floats) -> Floats:
    """Mass share of the best `COVERAGE_SHARES` of the blocks, float64 [layer, kv_head, share]; linear between whole blocks."""
    best = -np.sort(-mass, axis=-1)
    running = np.concatenate([np.zeros((*mass.shape[:-1], 1)), best.cumsum(axis=-1)], axis=-1)
    running /= running[..., -1:]
    where = np.array(COVERAGE_SHARES) * mass.shape[-1]
    low = np.minimum(where.astype(np.int64), mass.shape[-1] - 1)
    part: Floats = running[..., low] + (where - low) * (running[..., low + 1] - running[..., low])
    return part


def _round(value: float | np.floating[Any], digits: int = 4) -> float:
    return round(float(value), digits)
