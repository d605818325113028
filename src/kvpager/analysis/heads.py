"""What kind of head is this? Sorting attention heads by where their mass lies.

The source notes name four kinds: recency, anchor, retrieval, syntactic. Mass by position can tell the first
two. It cannot tell the other two from one another, nor from a head that is merely diffuse: that takes a test
of content (copying, a needle). They stay together here as ``other``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.analysis.locality import evidence_of, special_mass
from kvpager.traces.recording import SPECIALS, Recording

__all__ = ["ANCHOR_CUT", "KINDS", "RECENCY_CUT", "classify", "kind_of", "set_sink_aside", "wilson_interval", "zones"]

Floats = NDArray[np.float64]

KINDS = ("anchor", "recency", "other")
"""Kinds that mass alone can tell apart, in the order of the rule."""

ANCHOR_CUT, RECENCY_CUT = 0.5, 0.7
"""Least mass on tokens 0-99, and on the last 200 tokens, that makes a head an anchor or a recency head."""

_RULE = (
    f"anchor: tokens 0-99 hold ≥ {100 * ANCHOR_CUT:g} % of the mass; else recency: last 200 ≥ {100 * RECENCY_CUT:g} %; else other"
)

_SINK, _ANCHOR, _RECENT = (SPECIALS.index(name) for name in ("first_4", "first_100", "last_200"))


def classify(recording: Recording, first_step: int = 0) -> dict[str, Any]:
    """Sort every query head and KV head by its mean mass over the decode steps.

    A head is an *anchor* head if tokens 0-99 hold at least half of its mass; else a *recency* head if the last 200
    tokens hold at least 70 %; else *other*. A KV head's masses are the means of its query group's. With the sink set aside,
    the mass of tokens 0-3 is taken away from the head and from the total first.

    Parameters
    ----------
    recording : Recording
        With token-level masses.
    first_step : int
        Steps before it are ignored.

    Returns
    -------
    dict
        For ``q_heads`` and ``kv_heads``: ``count``, ``kinds`` (kind → count, share and 95 % Wilson interval), the same
        ``without_sink``, and ``largest_share`` (share of heads for which anchor, recency or the tokens between hold most);
        ``mixture`` (mean masses over KV heads), ``by_layer`` (one row of kinds per layer), ``zones_overlap``.
        The intervals treat heads as independent draws; they say nothing about other models or texts.

    Raises
    ------
    TraceError
        If the recording has no token-level masses, or no step is left.
    """
    header = recording.header
    q_heads = special_mass(recording, first_step).mean(axis=0)
    kv_heads = q_heads.reshape(len(header.layers), header.num_kv_heads, -1, len(SPECIALS)).mean(axis=2)
    kinds = kind_of(q_heads)
    return {
        "evidence": evidence_of(recording).label,
        "rule": _RULE,
        "limit": "retrieval and syntactic heads cannot be told apart from mass alone: both are in 'other'",
        "zones_overlap": header.context_tokens < 300,
        "layers": list(header.layers),
        "q_heads": _summary(q_heads),
        "kv_heads": _summary(kv_heads),
        "mixture": dict(zip(("anchor", "recency", "between"), _rounded(zones(kv_heads).mean(axis=(0, 1))), strict=True)),
        "by_layer": [[KINDS[k] for k in row] for row in kinds],
        "by_layer_without_sink": [[KINDS[k] for k in row] for row in kind_of(set_sink_aside(q_heads))],
    }


def kind_of(heads: Floats) -> NDArray[np.int64]:
    """Return the index into `KINDS` of each head, int64 [...]; `heads` float64 [..., special]."""
    anchor, recency = heads[..., _ANCHOR] >= ANCHOR_CUT, heads[..., _RECENT] >= RECENCY_CUT
    return np.where(anchor, 0, np.where(recency, 1, 2))


def set_sink_aside(heads: Floats) -> Floats:
    """Return `heads`, float64 [..., special], as if tokens 0-3 did not exist and the rest summed to 1."""
    out = heads.copy()
    sink = heads[..., _SINK]
    out[..., : _ANCHOR + 1] -= np.minimum(heads[..., : _ANCHOR + 1], sink[..., None])
    return out / np.maximum(1 - sink, 1e-6)[..., None]


def zones(heads: Floats) -> Floats:
    """Return the mass of tokens 0-99, of the last 200 and of those between, float64 [..., 3]."""
    anchor, recency = heads[..., _ANCHOR], heads[..., _RECENT]
    return np.stack([anchor, recency, np.maximum(0, 1 - anchor - recency)], axis=-1)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a share, clipped to 0..1.

    Parameters
    ----------
    successes, trials : int
        Counts; no trial gives (0, 1).
    z : float
        Normal quantile; 1.96 for 95 %.

    Notes
    -----
    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Examples
    --------
    >>> [round(x, 3) for x in wilson_interval(1, 10)]
    [0.018, 0.404]
    """
    if trials == 0:
        return 0.0, 1.0
    share, weight = successes / trials, z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / trials + weight / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def _summary(heads: Floats) -> dict[str, Any]:
    largest = zones(heads).argmax(axis=-1).ravel()
    bare = set_sink_aside(heads)
    bare_largest = zones(bare).argmax(axis=-1).ravel()
    return {
        "count": int(np.prod(heads.shape[:-1])),
        "kinds": _shares(kind_of(heads).ravel()),
        "without_sink": _shares(kind_of(bare).ravel()),
        "largest_share": dict(zip(("anchor", "recency", "between"), _means(largest), strict=True)),
        "largest_share_without_sink": dict(zip(("anchor", "recency", "between"), _means(bare_largest), strict=True)),
    }


def _shares(kinds: NDArray[np.int64]) -> dict[str, dict[str, float]]:
    out = {}
    for index, kind in enumerate(KINDS):
        count = int((kinds == index).sum())
        low, high = _rounded(wilson_interval(count, len(kinds)))
        out[kind] = {"count": count, "share": round(count / len(kinds), 4), "low": low, "high": high}
    return out


def _means(choice: NDArray[np.int64]) -> list[float]:
    return _rounded((choice == i).mean() for i in range(3))


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 4) for value in values]
