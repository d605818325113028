"""ARC: recency and frequency, balanced by what was dropped too early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from kvpager.core import Ids
from kvpager.policies.requests.base import REQUEST_POLICIES, Flags
from kvpager.policies.requests.chains import chains, take, to_front

__all__ = ["Arc"]


@REQUEST_POLICIES.register("arc")
@dataclass
class Arc:
    """Keep blocks that were asked for once, and others asked for again, in shares that follow the ghosts of both kinds.

    Source: ARC, Megiddo and Modha, FAST 2003, figure 4; the target is a real number, as there.
    """

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        _replay(blocks, distinct, capacity, hit)


@numba.njit(nogil=True, cache=True)
def _replay(blocks: Any, distinct: Any, capacity: Any, hit: Any) -> None:
    ahead, behind = chains(distinct, 4)
    place = np.full(distinct, -1, np.int8)  # 0, 1: held once, held again; 2, 3: their ghosts
    size = np.zeros(4, np.int64)
    target = 0.0
    for at in range(len(blocks)):
        block = blocks[at]
        was = place[block]
        hit[at] = 0 <= was <= 1
        if was >= 0:
            if was == 2:
                target = min(target + max(size[3] / size[2], 1.0), float(capacity))
            elif was == 3:
                target = max(target - max(size[2] / size[3], 1.0), 0.0)
            if was >= 2:
                _drop(ahead, behind, place, size, distinct, target, was == 3)
            take(ahead, behind, block)
            size[was] -= 1
            now = 1
        else:
            if size[0] + size[2] == capacity:
                if size[0] < capacity:
                    _forget(ahead, behind, place, size, distinct, 2)
                    _drop(ahead, behind, place, size, distinct, target, False)
                else:
                    _forget(ahead, behind, place, size, distinct, 0)
            elif size.sum() >= capacity:
                if size.sum() == 2 * capacity:
                    _forget(ahead, behind, place, size, distinct, 3)
                _drop(ahead, behind, place, size, distinct, target, False)
            now = 0
        to_front(ahead, behind, distinct + now, block)
        place[block] = now
        size[now] += 1


@numba.njit(inline="always")
def _forget(ahead: Any, behind: Any, place: Any, size: Any, distinct: Any, which: Any) -> None:
    """Forget the oldest block of a list."""
    gone = ahead[distinct + which]
    take(ahead, behind, gone)
    place[gone] = -1
    size[which] -= 1


@numba.njit
def _drop(ahead: Any, behind: Any, place: Any, size: Any, distinct: Any, target: Any, again: Any) -> None:
    """Make a ghost of the oldest block asked for once, or again ("replace" of the paper)."""
    first = size[0] >= 1 and (size[0] > target or (again and size[0] == target))
    which = 0 if first else 1
    gone = ahead[distinct + which]
    take(ahead, behind, gone)
    size[which] -= 1
    to_front(ahead, behind, distinct + which + 2, gone)
    place[gone] = which + 2
    size[which + 2] += 1
