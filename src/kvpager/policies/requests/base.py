"""What a request-level policy is: a compiled loop over block accesses that says which of them hit.

The cache holds blocks of one size. An access to a block that it holds is a hit; a block that it does not hold is taken in,
and another leaves if there is no room. Nothing is known of requests: what a hit is worth is decided from the flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.registry import Registry

__all__ = ["REQUEST_POLICIES", "Flags", "RequestPolicy", "checked"]

Flags = NDArray[np.bool_]

REQUEST_POLICIES: Registry[Callable[..., RequestPolicy]] = Registry("request policies", "kvpager.policies.requests")


class RequestPolicy(Protocol):
    """Replays accesses; a dataclass whose fields are its settings."""

    def replay(self, blocks: Ids, distinct: int, capacity: int, hit: Flags) -> None:
        """Write to `hit` which accesses hit.

        Parameters
        ----------
        blocks : int32 [n]
            Accessed blocks, in time order, as ids from 0 on.
        distinct : int
            Above every id.
        capacity : int
            Blocks that the cache holds, at least 1.
        hit : bool [n]
            Written.
        """
        ...


def checked(blocks: NDArray[Any], distinct: int, capacity: int) -> Ids:
    """Return `blocks` as contiguous int32.

    Raises
    ------
    BadInput
        If an id is out of range, or the capacity negative.
    """
    if capacity < 0:
        raise BadInput(f"a cache of {capacity} blocks is impossible: give 0 or more")
    if len(blocks) and not 0 <= int(blocks.min()) <= int(blocks.max()) < distinct:
        raise BadInput(f"block ids from {blocks.min()} to {blocks.max()} do not fit {distinct} blocks: number them from 0 on")
    return np.ascontiguousarray(blocks, np.int32)
