"""What a selector is: it decides which units of one layer a decode step reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Tick
from kvpager.errors import BadInput
from kvpager.registry import Registry

__all__ = ["SELECTORS", "Mask", "Selector", "View", "top_share"]

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


class Selector(Protocol):
    """Chooses the units that a layer reads."""

    needs: ClassVar[frozenset[str]]
    """Of ``"mass"``, ``"bound"``, ``"resident"``, ``"query_cosine"``; live refuses ``"mass"``."""
    residency_free: ClassVar[bool]
    """True if what it selects does not depend on where units are."""

    def describe(self) -> str:
        """Return the access definition in words, for every table that prints a ratio."""
        ...

    def select(self, view: View) -> Mask:
        """Return what to read, bool ``[kv_heads, blocks]``."""
        ...


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
    if not 0 < read_fraction <= 1:
        raise BadInput(f"read fraction {read_fraction} is impossible: give a share above 0 and at most 1")
    blocks = scores.shape[1]
    count = math.ceil(round(read_fraction * blocks, 9))
    order = np.argsort(scores, axis=1, kind="stable")[:, blocks - count :]
    mask = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(mask, order, True, axis=1)
    return mask
