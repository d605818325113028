"""What several tiers would have served of recorded requests: which block from where, what is read and written, who has room.

Two modes:

- ``exclusive``: a block stands in one tier. What a tier pushes out is written to the next, what falls off the last is gone,
  and a hit below the top moves up.
- ``inclusive``: the last tier is the backing store and keeps copies. The tiers above it are exclusive among themselves; a hit
  in the store is copied up, and what falls off the tiers above is written to it only if it is not there.

The ``write_policy`` says when the last tier is written: ``through``, a new block at once; ``demotion``, what the tiers above
push out; ``second-hit``, only what was asked for twice so far (every id is remembered): an inclusive store at the second time,
an exclusive last tier once it is pushed out.

Two semantics, as in `kvpager.replay.requests`: ``block``, each access by itself; ``prefix``, a prompt is looked up before
anything changes, only its leading run hits, its beginning is the most recent afterwards, and of a prompt larger than a tier
the beginning goes there. The slow reference of the tests says the same in few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids
from kvpager.errors import BadInput, CapacityError
from kvpager.policies.requests.base import checked
from kvpager.replay.hierarchyloop import HELD, LRU, ON_DEMOTION, ON_SECOND_HIT, PROMOTE, ROOM, THROUGH, replay
from kvpager.traces.interning import intern
from kvpager.traces.requests import RequestTrace
from kvpager.traces.room import check_room

__all__ = ["Hierarchy", "HierarchyReplay", "TierSpec", "replay_hierarchy"]

_WRITES = {"through": THROUGH, "demotion": ON_DEMOTION, "second-hit": ON_SECOND_HIT}
_DEFAULT_WRITE = {"inclusive": "through", "exclusive": "demotion"}


@dataclass(frozen=True)
class TierSpec:
    """One tier.

    Parameters
    ----------
    name : str
        What rows call it.
    capacity_blocks, capacity_bytes : int, optional
        Its size, one or the other; neither = unbounded, 0 = absent. Bytes need a block's size, and hold whole blocks only.
    policy : {"lru", "fifo"}
        Which block it pushes out.
    promote : bool
        Whether a hit moves up to the top, or in the store is copied there; else the block is read where it stands.
    quota_blocks, quota_shares : mapping of str to number
        Room that only this tenant uses, and all that it uses, in blocks or as a share of the tier. Tenants without a quota
        have the rest together.

    Raises
    ------
    BadInput
        For two sizes, one below 0, an unknown policy, or a tenant's two quotas.
    """

    name: str
    capacity_blocks: int | None = None
    capacity_bytes: int | None = None
    policy: str = "lru"
    promote: bool = True
    quota_blocks: Mapping[str, int] = field(default_factory=dict)
    quota_shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.capacity_blocks is not None and self.capacity_bytes is not None:
            raise BadInput(f"tier {self.name!r} has a size in blocks and one in bytes: give one of them")
        if min(self.capacity_blocks or 0, self.capacity_bytes or 0) < 0:
            raise BadInput(
                f"tier {self.name!r} cannot hold {self.capacity_blocks or self.capacity_bytes}: give 0 or more, or no size at all"
            )
        if self.policy not in ("lru", "fifo"):
            raise BadInput(f"tier {self.name!r}: policy {self.policy!r} is unknown for a tier: choose lru or fifo")
        twice = sorted(self.quota_blocks.keys() & self.quota_shares.keys())
        if twice:
            raise BadInput(f"tier {self.name!r}: tenant {twice[0]!r} has a quota in blocks and a share: give one of them")


@dataclass(frozen=True)
class Hierarchy:
    """Tiers, the fastest first, and how blocks move between them: see the module.

    Parameters
    ----------
    tiers : sequence of TierSpec
        At least one.
    mode : {"inclusive", "exclusive"}
        Whether the last tier keeps copies.
    write_policy : {"through", "demotion", "second-hit"}, optional
        When the last tier is written; default ``through`` if inclusive, else ``demotion``.
    semantics : {"block", "prefix"}
        What a hit is.
    separate_tenants : bool
        Whether equal contents of two tenants are two blocks, as with a salt in the cache key. Quotas imply it.

    Raises
    ------
    BadInput
        For no tier, a name twice, an unknown word, or an exclusive hierarchy that writes through.
    """

    tiers: Sequence[TierSpec]
    mode: str = "inclusive"
    write_policy: str | None = None
    semantics: str = "block"
    separate_tenants: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        names = [tier.name for tier in self.tiers]
        if not 1 <= len(names) <= 100:
            raise BadInput(f"a hierarchy of {len(names)} tiers cannot be replayed: give 1 to 100")
        if len(set(names)) < len(names):
            raise BadInput(f"the hierarchy names a tier twice among {', '.join(names)}: give each a name of its own")
        for what, value, known in (
            ("mode", self.mode, _DEFAULT_WRITE),
            ("write policy", self.written, _WRITES),
            ("semantics", self.semantics, ("block", "prefix")),
        ):
            if value not in known:
                raise BadInput(f"hierarchy: {what} {value!r} is unknown: choose {' or '.join(known)}")
        if self.mode == "exclusive" and self.written == "through":
            raise BadInput(
                "an exclusive hierarchy keeps a block in one tier and cannot write it through to the last: "
                "choose the mode inclusive, or the write policy demotion or second-hit"
            )

    @property
    def written(self) -> str:
        """The write policy, the default made explicit."""
        return self.write_policy or _DEFAULT_WRITE.get(self.mode, "through")

    @property
    def separated(self) -> bool:
        """Whether equal contents of two tenants are two blocks."""
        return self.separate_tenants or any(tier.quota_blocks or tier.quota_shares for tier in self.tiers)


@dataclass(frozen=True, eq=False)
class HierarchyReplay:
    """What a replay found; `kvpager.replay.hierarchyrow.row` makes it ready for JSON.

    Parameters
    ----------
    trace : RequestTrace
        What was replayed; if tenants are separate, with a block for each tenant that asks.
    hierarchy : Hierarchy
        As asked.
    first : int
        Requests before the counted ones.
    block_bytes : int, optional
        Bytes of a block.
    served : int8 [accesses]
        Tier that each access is served from, or -1: computed again.
    quotas : tuple of mapping of str to int
        Of each tier, blocks of the tenants with a quota.
    sizes : tuple of int, optional
        Blocks that each tier may hold; None = unbounded.
    counts : int64 [tiers, 8]
        Columns of `kvpager.replay.hierarchyloop`, of the counted requests.
    held : int64 [tiers]
        Blocks in each tier at the end.
    """

    trace: RequestTrace
    hierarchy: Hierarchy
    first: int
    block_bytes: int | None
    served: NDArray[np.int8]
    quotas: tuple[Mapping[str, int], ...]
    sizes: tuple[int | None, ...]
    counts: NDArray[np.int64]
    held: NDArray[np.int64]


def replay_hierarchy(
    trace: RequestTrace, hierarchy: Hierarchy, *, block_bytes: int | None = None, warmup: float = 0.0
) -> HierarchyReplay:
    """Replay requests over tiers, one access after the other.

    Parameters
    ----------
    trace : RequestTrace
        The requests, with chained block ids.
    hierarchy : Hierarchy
        The tiers.
    block_bytes : int, optional
        Bytes of a block, all its layers; a partial block takes as many. Needed for sizes in bytes.
    warmup : float
        Share of the requests that are replayed first and not counted, in [0, 1).

    Returns
    -------
    HierarchyReplay

    Raises
    ------
    BadInput
        For requests without blocks, a size in bytes without `block_bytes`, quotas that a tier cannot hold or of a tenant
        that the trace does not have.
    CapacityError
        If the lists would not fit into the free memory; nothing is swapped out.
    """
    if not 0 <= warmup < 1:
        raise BadInput(f"a warm-up of {warmup} of the requests leaves none to count: give a share from 0 to below 1")
    if block_bytes is not None and block_bytes < 1:
        raise BadInput(f"a block of {block_bytes} bytes is impossible: give 1 or more")
    if not len(trace.blocks):
        raise BadInput(f"{trace.name} has no blocks, so no tier can be replayed on it: give a trace with block ids")
    asked = _separated(trace) if hierarchy.separated else trace
    blocks, distinct = checked(asked.blocks, asked.distinct, 0), asked.distinct
    _check_room(trace, distinct)
    sizes = tuple(_size(tier, block_bytes) for tier in hierarchy.tiers)
    quotas = tuple(_quotas(tier, size, trace.tenants) for tier, size in zip(hierarchy.tiers, sizes, strict=True))
    there = [number for number, size in enumerate(sizes) if size != 0]
    owner = _owners(asked) if any(quotas) else np.zeros(1, np.int32)
    lists, rooms = _lists([sizes[i] for i in there], [quotas[i] for i in there], trace.tenants, distinct)
    tiers = np.zeros((len(there), 8), np.int64)
    tiers[:, LRU] = [hierarchy.tiers[number].policy == "lru" for number in there]
    tiers[:, PROMOTE] = [hierarchy.tiers[number].promote for number in there]
    served = np.full(len(blocks), -1, np.int8)
    first = int(warmup * len(trace))
    if there:
        replay(
            blocks, asked.starts, owner, distinct, lists, rooms, tiers, hierarchy.mode == "inclusive",
            _WRITES[hierarchy.written], hierarchy.semantics == "prefix", first, served,
        )  # fmt: skip
        served = np.array([*there, -1], np.int8)[served]
    counts, held = np.zeros((len(sizes), 8), np.int64), np.zeros(len(sizes), np.int64)
    counts[there] = tiers
    held[there] = [rooms[np.unique(mine), HELD].sum() for mine in lists]
    return HierarchyReplay(asked, hierarchy, first, block_bytes, served, quotas, sizes, counts, held)


def _check_room(trace: RequestTrace, distinct: int) -> None:
    """Refuse what would be swapped out, or has more blocks than links can number."""
    if distinct > 2**30 - 2**16:
        raise CapacityError(f"{trace.name}: {distinct:,} distinct blocks are too many to replay over tiers: use larger blocks")
    check_room(len(trace.blocks) + 24 * distinct, f"a replay over tiers of {trace.name}")


def _separated(trace: RequestTrace) -> RequestTrace:
    """The trace with a block for each tenant that asks for it."""
    tenant = np.repeat(trace.tenant, np.diff(trace.starts)).astype(np.uint64)
    blocks, _ = intern(tenant * np.uint64(trace.distinct) + trace.blocks.astype(np.uint64))
    return replace(trace, blocks=blocks)


def _owners(trace: RequestTrace) -> Ids:
    """Each block's tenant, of a trace where it has one."""
    owner = np.zeros(trace.distinct, np.int32)
    owner[trace.blocks] = np.repeat(trace.tenant, np.diff(trace.starts))
    return owner


def _size(tier: TierSpec, block_bytes: int | None) -> int | None:
    """Blocks that a tier may hold; None = unbounded."""
    if tier.capacity_bytes is None:
        return tier.capacity_blocks
    if block_bytes is None:
        raise BadInput(f"tier {tier.name!r} has a size in bytes, and a block has none: give block_bytes, or capacity_blocks")
    return tier.capacity_bytes // block_bytes


def _quotas(tier: TierSpec, size: int | None, tenants: Sequence[str]) -> Mapping[str, int]:
    """Blocks of each tenant that has a quota."""
    for tenant, quota in (*tier.quota_blocks.items(), *tier.quota_shares.items()):
        if tenant not in tenants:
            known = ", ".join(map(repr, tenants[:8]))
            raise BadInput(f"tier {tier.name!r} has a quota for {tenant!r}, no tenant of this trace: its tenants are {known}")
        if quota < 0:
            raise BadInput(f"tier {tier.name!r}: a quota of {quota} for tenant {tenant!r} is impossible: give 0 or more")
    if size is None:
        if tier.quota_shares:
            raise BadInput(f"tier {tier.name!r} is unbounded, and has no share for a tenant: give it a size, or quotas in blocks")
        return dict(tier.quota_blocks)
    if sum(tier.quota_shares.values()) > 1 + 1e-9:
        raise BadInput(f"tier {tier.name!r}: its tenants' shares add up to {sum(tier.quota_shares.values()):g}: give 1 at most")
    found = dict(tier.quota_blocks) | {tenant: int(share * size + 1e-9) for tenant, share in tier.quota_shares.items()}
    if sum(found.values()) > size:
        raise BadInput(f"tier {tier.name!r}: quotas of {sum(found.values())} blocks exceed its {size}: give less, or enlarge it")
    return found


def _lists(
    sizes: Sequence[int | None], quotas: Sequence[Mapping[str, int]], tenants: Sequence[str], distinct: int
) -> tuple[Ids, NDArray[np.int64]]:
    """Give each tenant with a quota a list of its own, and the others one together, in every tier."""
    lists = np.zeros((len(sizes), len(tenants)), np.int32)
    rooms: list[int] = []
    for tier, (size, quota) in enumerate(zip(sizes, quotas, strict=True)):
        lists[tier] = len(rooms)
        rooms.append(distinct if size is None else size - sum(quota.values()))
        for tenant, blocks in quota.items():
            lists[tier, tenants.index(tenant)] = len(rooms)
            rooms.append(blocks)
    table = np.zeros((len(rooms), 2), np.int64)
    table[:, ROOM] = np.minimum(np.array(rooms, np.int64), distinct)
    return lists, table
