"""The compiled loop behind `kvpager.replay.hierarchy`: blocks in several tiers, each an LRU or FIFO list of its own.

The *chain* is the tiers that a block stands in one at a time; what a tier pushes out goes to the next. In an exclusive
hierarchy all tiers are the chain; below an inclusive one lies the *store*, the last tier, which keeps copies. A tier has one
list and one room for all tenants, or one for each.

All lists stand in one array of links: a block is its own number in the chain, `distinct` more in the store, and every list's
head comes after. An access is one long loop: a call with arrays counts references to each, and that halves the speed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

__all__ = [
    "DEMOTED", "EVICTED", "HELD", "LRU", "MOVED_UP", "NEW", "ON_DEMOTION", "ON_SECOND_HIT", "PROMOTE", "PROMOTED", "READ",
    "ROOM", "THROUGH", "replay",
]  # fmt: skip

THROUGH, ON_DEMOTION, ON_SECOND_HIT = 0, 1, 2  # when the last tier takes a block in
LRU, PROMOTE, READ, NEW, DEMOTED, PROMOTED, EVICTED, MOVED_UP = range(8)  # columns of `tiers`: settings, then counts
ROOM, HELD = 0, 1  # columns of `rooms`
_OLDER, _NEWER = 0, 1  # a head's older neighbour is the newest block of its list
# as int64, or the loop would be compiled for each number
_ON, _BACK = np.int64(1), np.int64(-1)
_NOWHERE, _AT_ONCE = np.int64(-1), np.int64(-2)


class _Rules(NamedTuple):
    """Numbers that do not change."""

    distinct: int
    heads: int  # the first list's
    chain: int  # tiers of it
    inclusive: bool
    write: int
    split: int  # 1 if tenants have lists of their own


@numba.njit(nogil=True, cache=True)
def replay(
    blocks: Any, starts: Any, owner: Any, distinct: Any, lists: Any, rooms: Any, tiers: Any, inclusive: Any, write: Any,
    by_prefix: Any, first: Any, served: Any,
) -> None:  # fmt: skip
    """Write to `served` the tier that each access is served from, -1 = none; count in `tiers` from request `first` on.

    `owner` [distinct] is each block's tenant, [1] if that does not matter; `lists` [tier, tenant] the list that its blocks stand
    in; `rooms` [list, 2] how many blocks that may hold and does; `tiers` [tier, 8] settings and counts.
    """
    heads = distinct * (2 if inclusive else 1)
    rules = _Rules(distinct, heads, len(tiers) - (1 if inclusive else 0), inclusive, write, 1 if len(owner) > 1 else 0)
    links = np.full((heads + len(rooms), 2), -1, np.int32)
    for head in range(heads, heads + len(rooms)):
        links[head, _OLDER] = links[head, _NEWER] = head
    place = np.full(distinct, -1, np.int8)
    asked = np.zeros(distinct if write == ON_SECOND_HIT else 1, np.int8)
    if not by_prefix:
        for begin, stop in ((starts[0], starts[first]), (starts[first], starts[-1])):
            tiers[:, READ:] = 0
            _serve(links, place, asked, owner, lists, rooms, tiers, rules, blocks, begin, stop, _ON, begin, _AT_ONCE, served)
        return
    for request in range(len(starts) - 1):
        if request == first:
            tiers[:, READ:] = 0
        start, end = starts[request], starts[request + 1]
        _prompt(links, place, asked, owner, lists, rooms, tiers, rules, blocks, start, end, served)


@numba.njit(nogil=True, cache=True)
def _prompt(
    links: Any, place: Any, asked: Any, owner: Any, lists: Any, rooms: Any, tiers: Any, rules: Any,
    blocks: Any, start: Any, end: Any, served: Any,
) -> None:  # fmt: skip
    """Look a prompt up, then take it in from its end to its beginning, so that the beginning is the most recent.

    What hits goes first, tier by tier, so that nothing the prompt needs is pushed out before it is read.
    """
    behind = start
    while behind < end:
        block = np.int64(blocks[behind])
        served[behind] = place[block]
        if place[block] < 0:
            if not (rules.inclusive and links[rules.distinct + block, _OLDER] >= 0):
                break
            served[behind] = rules.chain
        behind += 1
    served[behind:end] = -1
    for tier in range(len(tiers)):
        _serve(links, place, asked, owner, lists, rooms, tiers, rules, blocks, behind - 1, start - 1, _BACK, start, tier, served)
    _serve(links, place, asked, owner, lists, rooms, tiers, rules, blocks, end - 1, behind - 1, _BACK, start, _NOWHERE, served)
    for at in range(behind - 1, start - 1, -1):
        block = np.int64(blocks[at])
        tenant, stands = owner[block * rules.split], np.int64(place[block])
        if stands >= 0 and tiers[stands, LRU]:
            _renew(links, rules, lists[stands, tenant], block)
        if rules.inclusive and tiers[rules.chain, LRU] and links[rules.distinct + block, _OLDER] >= 0:
            _renew(links, rules, lists[rules.chain, tenant], rules.distinct + block)


@numba.njit(nogil=True, cache=True)
def _serve(
    links: Any, place: Any, asked: Any, owner: Any, lists: Any, rooms: Any, tiers: Any, rules: Any,
    blocks: Any, begin: Any, stop: Any, step: Any, start: Any, only: Any, served: Any,
) -> None:  # fmt: skip
    """Carry out accesses: all of them, each looked up at once, or those of a prompt that tier `only` serves (-1: none does).

    Of a prompt, a block enters only what has room for more than the blocks before it.
    """
    for at in range(begin, stop, step):
        block, deep, source = np.int64(blocks[at]), at - start, served[at]
        tenant, stands = owner[block * rules.split], np.int64(place[block])
        kept = rules.inclusive and links[rules.distinct + block, _OLDER] >= 0
        if only == _AT_ONCE:
            source, deep = stands if stands >= 0 else rules.chain if kept else -1, 0
            served[at] = source
        elif source != only:
            continue
        if rules.write == ON_SECOND_HIT:
            asked[block] = min(asked[block] + 1, 2)
        if source >= 0:
            tiers[source, READ] += 1
        if kept and tiers[rules.chain, LRU]:
            _renew(links, rules, lists[rules.chain, tenant], rules.distinct + block)
        made = block if not kept and (rules.write == ON_SECOND_HIT or (rules.write == THROUGH and source < 0)) else -1
        carried = block if source < 0 or tiers[source, PROMOTE] else -1
        depth, why, tier = deep, NEW if source < 0 else PROMOTED, 0
        while tier < stands and rooms[lists[tier, tenant], ROOM] <= depth:
            tier += 1
        if stands >= 0 and (carried < 0 or tier == stands):
            carried = -1
            if tiers[stands, LRU]:
                _renew(links, rules, lists[stands, tenant], block)
        elif stands >= 0:
            _take(links, block)
            place[block] = -1
            rooms[lists[stands, tenant], HELD] -= 1
            tiers[stands, MOVED_UP] += 1
        while carried >= 0 and tier < rules.chain:
            mine, victim = lists[tier, owner[carried * rules.split]], np.int64(-1)
            refused = rules.write == ON_SECOND_HIT and tier == len(tiers) - 1 and asked[carried] < 2
            if rooms[mine, ROOM] > depth and not refused:
                if rooms[mine, HELD] == rooms[mine, ROOM]:
                    victim = np.int64(links[rules.heads + mine, _NEWER])
                    _take(links, victim)
                    place[victim] = -1
                    tiers[tier, EVICTED] += 1
                else:
                    rooms[mine, HELD] += 1
                _put(links, rules.heads + mine, carried)
                place[carried] = tier
                tiers[tier, why] += 1
                carried, depth, why = victim, 0, DEMOTED
            tier += 1
        if rules.inclusive and (made >= 0 or (carried >= 0 and links[rules.distinct + carried, _OLDER] < 0)):
            _keep(links, asked, owner, lists, rooms, tiers, rules, made, deep, carried, depth, why)


@numba.njit(nogil=True, cache=True)
def _keep(
    links: Any, asked: Any, owner: Any, lists: Any, rooms: Any, tiers: Any, rules: Any,
    made: Any, deep: Any, carried: Any, depth: Any, why: Any,
) -> None:  # fmt: skip
    """Write to the store what was made and what the chain does not hold, unless it is there; -1 = nothing."""
    for block, before, reason in ((made, deep, NEW), (carried, depth, why)):
        if block < 0 or links[rules.distinct + block, _OLDER] >= 0 or (rules.write == ON_SECOND_HIT and asked[block] < 2):
            continue
        mine = lists[rules.chain, owner[block * rules.split]]
        if rooms[mine, ROOM] <= before:
            continue
        if rooms[mine, HELD] == rooms[mine, ROOM]:
            _take(links, np.int64(links[rules.heads + mine, _NEWER]))
            tiers[rules.chain, EVICTED] += 1
        else:
            rooms[mine, HELD] += 1
        _put(links, rules.heads + mine, rules.distinct + block)
        tiers[rules.chain, reason] += 1


@numba.njit(inline="always")
def _renew(links: Any, rules: Any, mine: Any, node: Any) -> None:
    """Make a node the newest of its list."""
    _take(links, node)
    _put(links, rules.heads + mine, node)


@numba.njit(inline="always")
def _put(links: Any, head: Any, node: Any) -> None:
    """Put a node that stands in no list in front of one."""
    newest = links[head, _OLDER]
    links[node, _NEWER] = head
    links[node, _OLDER] = newest
    links[head, _OLDER] = node
    links[newest, _NEWER] = node


@numba.njit(inline="always")
def _take(links: Any, node: Any) -> None:
    """Take a node out of its list."""
    newer, older = links[node, _NEWER], links[node, _OLDER]
    links[newer, _OLDER] = older
    links[older, _NEWER] = newer
    links[node, _OLDER] = -1
