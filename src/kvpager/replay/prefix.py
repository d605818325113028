"""Prefixes of prompts: ids that tell them, and what leading hits are worth.

In prefix semantics a block is of use only if all before it are there. Block ids must be chained for that: an id says its block
and all that stands before it. A trace knows whether its ids are (`RequestTrace.chained`); those that name contents alone become
so by `chain`, which is asked for and never done in silence, since hits by block are other ones afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput
from kvpager.policies.requests.prefix.base import Runs, Starts
from kvpager.traces.requests import RequestTrace

__all__ = ["chain", "chained", "check_chained", "hit_tokens"]


def chain(trace: RequestTrace) -> RequestTrace:
    """Return the same requests with chained ids; `source["chained"]` says that they became so here.

    A block that stands behind different ones becomes as many blocks, as in kvcache-simulator and in serving engines.

    Parameters
    ----------
    trace : RequestTrace
        The whole; one whose ids are chained is returned as it is.

    Raises
    ------
    BadInput
        If it is a piece of a trace.
    """
    if trace.first_row:
        raise BadInput(f"{trace.name} is a piece, whose ids go on from those before it: chain the whole trace")
    if trace.chained:
        return trace
    nodes, _ = chained(trace.blocks, trace.starts, trace.distinct)
    return replace(trace, blocks=nodes, chained=True, source={**trace.source, "chained": "by kvpager"})


def check_chained(trace: RequestTrace) -> None:
    """Raise `BadInput` if prefix semantics do not apply to the ids of a trace."""
    if not trace.chained:
        raise BadInput(
            f"{trace.name}: its ids name contents, not what stands before them, and prefix semantics need that: chain them first "
            "(kvpager.replay.prefix.chain), or replay by block"
        )


def chained(blocks: Ids, starts: Starts, distinct: int) -> tuple[Ids, int]:
    """Return ids that tell a block with all before it, and how many there are, in the order of first appearance.

    Parameters
    ----------
    blocks : int32 [n]
        Ids of contents, request by request.
    starts : int64 [requests + 1]
        Where each request begins.
    distinct : int
        Above every id.
    """
    nodes = np.empty(len(blocks), np.int32)
    return nodes, int(_chain(blocks, starts, distinct, nodes))


def hit_tokens(runs: Runs, starts: Starts, input_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Return the tokens of each request's leading hits; a last block that is not full counts for what it holds.

    Parameters
    ----------
    runs : int32 [requests]
        Leading hits, in blocks.
    starts : int64 [requests + 1]
        Where each request begins.
    input_tokens : int64 [requests]
        Lengths of the prompts.
    block_size : int
        Tokens of a block.

    Returns
    -------
    int64 [requests]
    """
    return np.minimum(runs.astype(np.int64) * block_size, input_tokens)


@numba.njit(nogil=True, cache=True)
def _chain(blocks: Any, starts: Any, distinct: Any, nodes: Any) -> Any:
    size = 1
    while size < 2 * len(blocks) + 2:
        size *= 2
    keys = np.full(size, -1, np.int64)
    values = np.empty(size, np.int32)
    known = 0
    for request in range(len(starts) - 1):
        parent = -1
        for at in range(starts[request], starts[request + 1]):
            key = np.int64(parent + 1) * distinct + blocks[at]
            mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
            place = np.int64((mixed ^ (mixed >> np.uint64(29))) & np.uint64(size - 1))
            while keys[place] >= 0 and keys[place] != key:
                place = (place + 1) & (size - 1)
            if keys[place] < 0:
                keys[place], values[place] = key, known
                known += 1
            parent = values[place]
            nodes[at] = parent
    return known
