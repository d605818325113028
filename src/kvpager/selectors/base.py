"""What a selector is: it decides which units of one layer a decode step reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Tick
from kvpager.errors import BadInput
from kvpager.registry import Registry

__all__ = ["SELECTORS", "ByHistory", "ByKeys", "Mask", "ReadSet", "Selector", "View", "live_only", "top_count", "top_share"]

Mask = NDArray[np.bool_]

SELECTORS: Registry[Callable[..., Selector]] = Registry("selectors", "kvpager.selectors")


class View(NamedTuple):
    """What a selector may look at: the complete blocks of one layer and row; the open block is not on offer.

    `units` are int32, the others float32 or bool, all ``[kv_heads, blocks]``, but for `query_cosine` ``[kv_heads]``.
    """

    tick: Tick
    bound: NDArray[np.float32] | None
    """Score of each block by its key summary."""
    mass: NDArray[np.float32] | None
    """Attention mass; that of unread blocks exists only in a dense recording."""
    resident: Mask
    previous: Mask
    """What this selector chose for the same layer one step ago."""
    query_cosine: NDArray[np.float32] | None
    """Cosine of this step's queries with the last step's, mean over the group."""
    score: NDArray[np.float32] | None = None
    """Moving average of the mass that each block drew when it was read; live only."""
    block_size: int = 16
    """Tokens of a block."""


class Selector(Protocol):
    """Chooses the units that a layer reads."""

    needs: ClassVar[frozenset[str]]
    """Of ``"mass"``, ``"bound"``, ``"resident"``, ``"query_cosine"``, ``"score"``; see `live_only` for what replay lacks.

    Live refuses ``"mass"``.
    """
    residency_free: ClassVar[bool]
    """True if what it selects does not depend on where units are."""

    def describe(self) -> str:
        """Return the access definition in words, for every table that prints a ratio."""
        ...

    def select(self, view: View) -> Mask:
        """Return what to read, bool ``[kv_heads, blocks]``."""
        ...


def live_only(selector: Selector) -> str | None:
    """Say why no recording can serve `selector`; None if one can."""
    summary, rerank = getattr(selector, "summary", "key_bound"), getattr(selector, "rerank", 0)
    if "score" in selector.needs:
        return "ranks blocks by the mass that they drew when they were read, which only a live run keeps"
    if "bound" in selector.needs and summary != "key_bound":
        return f"ranks blocks by the key summary {summary!r}, and recordings hold key bounds only"
    if rerank:
        return f"ranks {rerank} times the read set again by exact keys, and recordings hold none"
    return None


def top_share(scores: NDArray[np.float32], read_fraction: float) -> Mask:
    """Mark each row's ``ceil(read_fraction * blocks)`` largest scores; of equal ones the newest blocks.

    Parameters
    ----------
    scores : float32 [kv_heads, blocks]
        Higher = read.
    read_fraction : float
        In (0, 1].

    Returns
    -------
    bool [kv_heads, blocks]

    Raises
    ------
    BadInput
        If the share is out of range.
    """
    return top_count(scores, _count(read_fraction, scores.shape[1]))


def _count(read_fraction: float, blocks: int) -> int:
    """Blocks of a read set, rounded up."""
    if not 0 < read_fraction <= 1:
        raise BadInput(f"read fraction {read_fraction} is impossible: give a share above 0 and at most 1")
    return math.ceil(round(read_fraction * blocks, 9))


def top_count(scores: NDArray[np.float32], count: int) -> Mask:
    """Mark each row's `count` largest scores; of equal ones the newest blocks."""
    blocks = scores.shape[1]
    if count >= blocks:
        return np.ones(scores.shape, np.bool_)
    if count <= 0:
        return np.zeros(scores.shape, np.bool_)
    least = np.partition(scores, blocks - count, axis=1)[:, blocks - count, None]
    mask: Mask = scores >= least
    if (np.count_nonzero(mask, axis=1) == count).all():
        return mask
    above, equal = scores > least, scores == least
    newest_first = np.cumsum(equal[:, ::-1], axis=1)[:, ::-1]
    mask = above | (equal & (newest_first <= count - above.sum(axis=1, keepdims=True)))
    return mask


@dataclass
class ReadSet:
    """What selectors with a read set of fixed size share: which blocks are in it whatever their score.

    The read set of a KV head is ``ceil(read_fraction * blocks)`` complete blocks. The sink comes first, then the
    newest blocks, then the best of what was read one step ago, and the rest by score. All of them count.

    Parameters
    ----------
    read_fraction : float
        Share of the complete blocks, in (0, 1], rounded up.
    sink, recent : int
        First and newest complete blocks that are always read, where the read set has room.
    """

    read_fraction: float = 0.1
    sink: int = 1
    recent: int = 1
    residency_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the settings."""
        _count(self.read_fraction, 1)
        for name in ("sink", "recent"):
            if getattr(self, name) < 0 or getattr(self, name) != int(getattr(self, name)):
                raise BadInput(f"{type(self).__name__}: {name} = {getattr(self, name)}: give a whole number of blocks, 0 or more")

    def count(self, blocks: int) -> int:
        """Return the size of the read set, in blocks."""
        return _count(self.read_fraction, blocks)

    def forced(self, heads: int, blocks: int, count: int) -> Mask:
        """Return the sink and the newest blocks, bool [heads, blocks], no more than `count` a head."""
        mask = np.zeros((heads, blocks), np.bool_)
        sink = min(self.sink, count)
        mask[:, :sink] = True
        mask[:, max(blocks - min(self.recent, count - sink), sink) :] = True
        return mask

    def fill(self, scores: NDArray[np.float32], forced: Mask, count: int) -> Mask:
        """Fill `forced` up to `count` blocks a head, by score."""
        return top_count(np.where(forced, np.float32(np.inf), scores), count)

    def pinned(self) -> str:
        """Return what is always read, in words."""
        parts = [f"{self.sink} first" * (self.sink > 0), f"{self.recent} newest" * (self.recent > 0)]
        named = " and ".join(filter(None, parts))
        return f", {named} always in" if named else ""


@dataclass
class ByKeys(ReadSet):
    """What selectors share that rank blocks by a summary of their keys.

    Parameters
    ----------
    previous : float
        Share of the read set that is filled by the best of what was read one step ago, in [0, 1].
    rerank : int
        0, or how many times the read set is chosen by summary and then ranked by exact keys; live only.
    """

    previous: float = 0.0
    rerank: int = 0
    needs: ClassVar[frozenset[str]] = frozenset({"bound"})
    summary: ClassVar[str]
    """Name of the key summary whose scores `View.bound` must hold."""
    score_name: ClassVar[str]
    """What the summary's score is, in words."""

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        if not 0 <= self.previous <= 1:
            raise BadInput(f"{type(self).__name__}: previous = {self.previous}: give a share of the read set from 0 to 1")
        if self.rerank != 0 and (self.rerank < 2 or self.rerank != int(self.rerank)):
            raise BadInput(f"{type(self).__name__}: rerank = {self.rerank}: give 0, or 2 or more times the read set")

    def describe(self) -> str:
        """Return the access definition in words."""
        kept = f", {100 * self.previous:g} % of it from the last step" if self.previous else ""
        exact = f", ranked again by exact keys among {self.rerank} times as many" if self.rerank else ""
        share = f"{100 * self.read_fraction:g} % of largest {self.score_name}"
        return f"block among its KV head's {share}{self.pinned()}{kept}{exact}; open block not counted"

    def select(self, view: View) -> Mask:
        """Take the forced blocks and the best of the rest by ``view.bound``."""
        return self._choose(view, 1)

    def candidates(self, view: View) -> Mask:
        """Take `rerank` times the read set, to be ranked again: `select` wants their exact scores, -inf elsewhere."""
        return self._choose(view, max(self.rerank, 1))

    def _choose(self, view: View, times: int) -> Mask:
        scores = self._scores(view)
        heads, blocks = scores.shape
        count = self.count(blocks)
        chosen = self.forced(heads, blocks, count)
        if self.previous:
            again = view.previous & ~chosen
            room = count - int(chosen[:1].sum())
            best = top_count(np.where(again, scores, -np.inf).astype(np.float32), min(int(self.previous * count), room))
            chosen |= best & again
        return self.fill(scores, chosen, min(times * count, blocks))

    def _scores(self, view: View) -> NDArray[np.float32]:
        if view.bound is None:
            raise BadInput(f"{self.summary} needs scores by key summary, and here are none: {self._remedy()}")
        return view.bound

    def _remedy(self) -> str:
        return "record it again" if self.summary == "key_bound" else "use it in a live run, or choose key_bound"


@dataclass
class ByHistory(ReadSet):
    """What selectors share that rank blocks by what they drew so far, and never look at the query; live only."""

    needs: ClassVar[frozenset[str]] = frozenset({"score"})

    def select(self, view: View) -> Mask:
        """Take the forced blocks and the best of the rest."""
        if view.score is None:
            raise BadInput(
                f"{type(self).__name__} needs the mass that blocks drew when read: use it in a live run, or choose key_bound"
            )
        heads, blocks = view.score.shape
        count = self.count(blocks)
        return self.fill(self.rank(view, view.score), self.forced(heads, blocks, count), count)

    def rank(self, view: View, score: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rank of each block, float32 [kv_heads, blocks]; higher = read."""
        return score
