"""What a policy of prefixes is: a compiled loop over requests that says how many leading blocks of each it holds.

A request looks up its blocks before anything changes; what hits is the leading run. Then its missing blocks are taken in, from
the front, as far as there is room or a worse block to drop. Ids are chained: a block's id says all that stands before it, so
that a block is of the same prompts as its parent, the block before it. Blocks without a child in the cache are its *leaves*.

The rules are those of kvcache-simulator 0.1.3 (MIT), but for a request longer than the whole cache: there it drops the
request's own newest block and stops one short; here the first blocks stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.registry import Registry

__all__ = ["PREFIX_POLICIES", "PrefixPolicy", "Runs", "Starts"]

Starts = NDArray[np.int64]
Runs = NDArray[np.int32]

PREFIX_POLICIES: Registry[Callable[..., PrefixPolicy]] = Registry("prefix policies", "kvpager.policies.requests.prefix")


class PrefixPolicy(Protocol):
    """Replays requests; a dataclass whose fields are its settings."""

    def replay(self, blocks: Ids, starts: Starts, distinct: int, capacity: int, runs: Runs) -> None:
        """Write to `runs` how many leading blocks of each request hit.

        Parameters
        ----------
        blocks : int32 [n]
            Chained ids by first appearance, request by request.
        starts : int64 [requests + 1]
            Where each request begins.
        distinct : int
            Above every id.
        capacity : int
            Blocks that the cache holds, at least 1.
        runs : int32 [requests]
            Written.
        """
        ...
