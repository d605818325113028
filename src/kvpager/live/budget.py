"""What a live cache may hold where: computed, and refused if it cannot work, before anything starts (law 6)."""

from __future__ import annotations

from dataclasses import dataclass

from kvpager.core import Budget
from kvpager.errors import CapacityError
from kvpager.live.layout import Layout
from kvpager.live.stream import GROUP_BLOCKS
from kvpager.units import format_bytes, is_number, parse_bytes, parse_share

__all__ = ["LANES", "METADATA_BYTES_PER_UNIT", "PREFETCH_SHARE", "LiveBudget", "live_budget"]

LANES = 2
"""Staging groups: while one is attended, the next is read."""

GROUPS_A_LAYER = 16
"""A staging group holds this part of a layer of the planned context, if that is more than a prefill's group: each round
of a step costs as much as reading about a megabyte."""

PREFETCH_SHARE = 0.01
"""Of HBM's payload, what a prefetcher may bring in a step."""

METADATA_BYTES_PER_UNIT = 96
"""Of this cache:
identity (21), place, flags and slot (10), pool (8), scores of two policies' kind (32), a disk record's share (24)."""


@dataclass(frozen=True)
class LiveBudget:
    """Sizes of a live cache.

    Attributes
    ----------
    layout : Layout
        Of the model.
    units : int
        Units of all KV, at the context and rows that were planned for.
    hbm_units, dram_units, staging_units : int
        What fits each.
    metadata_bytes : int
        Page table, scores, key summaries, checksums, and partial results of one layer, at that context.
    """

    layout: Layout
    units: int
    hbm_units: int
    dram_units: int
    staging_units: int
    metadata_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Payload of all KV."""
        return self.units * self.layout.kv_bytes

    @property
    def key_units(self) -> int:
        """Slots for keys that never leave fast memory; open blocks of forks have room too."""
        return self.units + self.staging_units if self.layout.split else 0

    @property
    def payload_bytes(self) -> int:
        """Payload of tiers 0 and 1, keys that stay there included."""
        return self.hbm_units * self.layout.unit_bytes + (self.units * self.layout.unit_bytes if self.layout.split else 0)

    @property
    def hbm_fraction(self) -> float:
        """Payload of tiers 0 and 1 over payload of all KV."""
        return self.payload_bytes / self.kv_bytes

    @property
    def staging_bytes(self) -> int:
        """The staging line."""
        return self.staging_units * self.layout.unit_bytes

    @property
    def hbm_bytes(self) -> int:
        """All of it: payload, staging and metadata."""
        return self.payload_bytes + self.staging_bytes + self.metadata_bytes

    def pager(self, disk_bytes: int, *, prefetching: bool = False) -> Budget:
        """Return it as the Pager wants it; a prefetcher may bring 1 % of HBM a step."""
        size = self.layout.unit_bytes
        per_tick = PREFETCH_SHARE * self.hbm_units * size / self.layout.layers if prefetching else 0.0
        payload = (0, self.hbm_units * size, self.dram_units * size, disk_bytes)
        return Budget(payload, self.metadata_bytes, self.staging_bytes, per_tick)

    def describe(self) -> str:
        """Return the three lines of HBM, and its share of the KV, in words."""
        extra = (self.staging_bytes + self.metadata_bytes) / self.kv_bytes
        payload, whole = format_bytes(self.payload_bytes), format_bytes(self.kv_bytes)
        return (
            f"HBM: payload {payload} ({100 * self.hbm_fraction:.3g} % of {whole} KV), "
            f"staging {format_bytes(self.staging_bytes)}, metadata {format_bytes(self.metadata_bytes)} "
            f"({100 * extra:.3g} % of the KV)"
        )


def live_budget(
    layout: Layout,
    *,
    context_tokens: int,
    hbm: str | float = "10%",
    dram: str | float = 0,
    rows: int = 1,
    summary_bytes_per_unit: float = 0.0,
) -> LiveBudget:
    """Work out a live cache's sizes.

    Parameters
    ----------
    layout : Layout
        Of the model.
    context_tokens : int
        Longest context, generated tokens included.
    hbm : str or float
        A share of all KV, which is payload; or bytes with a unit, which are payload, metadata and staging together.
    dram : str or float
        Tier 2, a share or bytes; 0 = none.
    rows : int
        Sequences of the longest context at once.
    summary_bytes_per_unit : float
        Of the selector's key summary.

    Raises
    ------
    CapacityError
        If HBM cannot hold the open units of all rows, two staging groups and the metadata; the message adds them up.
    """
    blocks = -(-context_tokens // layout.block_size)
    units = rows * blocks * layout.layers * layout.kv_heads
    size = layout.unit_bytes
    staging = LANES * max(min(GROUP_BLOCKS, blocks), -(-blocks // GROUPS_A_LAYER)) * layout.kv_heads
    scratch = rows * (blocks + 1) * layout.kv_heads * layout.group * (layout.v_dim + 2) * 4
    metadata = round(units * (METADATA_BYTES_PER_UNIT + summary_bytes_per_unit)) + scratch
    least = 2 * rows * layout.layers * layout.kv_heads
    keys = units if layout.split else 0
    if isinstance(hbm, str) and not hbm.strip().endswith("%") and not is_number(hbm):
        payload = (parse_bytes(hbm) - metadata) // size - staging - keys
    else:
        payload = int(parse_share(str(hbm), whole_bytes=units * layout.kv_bytes) * (units + keys) + 1e-9) - keys
    if payload < least:
        total = (least + staging + keys) * size + metadata
        raise CapacityError(
            f"HBM of {hbm} leaves {max(payload, 0) * size:,} bytes of payload, but the blocks being written need "
            f"{least * size:,} ({rows} row(s) x 2 blocks x {layout.layers} layers x {layout.kv_heads} KV heads), beside "
            f"{keys * size:,} of keys that stay, {staging * size:,} of staging and {metadata:,} of metadata: "
            f"give at least {total:,} B in all, or {100 * (least + keys) / (units + keys):.3g}% as a share"
        )
    dram_share = 0.0 if dram in (0, "0") else parse_share(str(dram), whole_bytes=units * size)
    in_dram = min(int(dram_share * units + 1e-9), units)
    return LiveBudget(layout, units, min(payload, units), in_dram, staging, metadata)
