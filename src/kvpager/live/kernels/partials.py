"""What attention to single blocks leaves, before it is folded, and the units of a KV head that it is folded over."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids

__all__ = ["Partials", "joined"]


class Partials(NamedTuple):
    """One row a (KV head, block), for each query head of the group."""

    m: NDArray[np.float32]
    """Largest logit, after scaling and softcap, [rows, group]."""
    l: NDArray[np.float32]  # noqa: E741 - the usual name of the sum
    """Sum of exp(logit - m), [rows, group]."""
    acc: NDArray[np.float32]
    """Sum of exp(logit - m) * V, [rows, group, v_dim]."""

    @staticmethod
    def empty(rows: int, group: int, v_dim: int) -> Partials:
        """Room for so many rows, with nothing in it yet."""
        small = (rows, group)
        return Partials(np.empty(small, np.float32), np.empty(small, np.float32), np.empty((*small, v_dim), np.float32))


def joined(memory: NDArray[np.uint8], slots: Ids, keys: Ids | None) -> tuple[NDArray[np.uint8], Ids]:
    """Return memory and slots in which each block stands as K and V together: a copy, if `keys` says that they are apart."""
    if keys is None:
        return memory, slots
    return np.concatenate([memory[keys], memory[slots]], 1), np.arange(len(slots), dtype=np.int32)
