"""Attention replay: the Pager, driven by a recording, over modelled tiers.

One run answers what a policy, a pool and a size would have hit on this recording. It models counts
and bytes, no time. Nothing here looks at demand or mass that a live run could not have seen, but for
policies that declare it (Belady) and the setting ``observe="all"``, which is labelled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvpager.core import ALL_LAYERS, DRAM, NVME, Budget, Demand, Tick, UnitTable
from kvpager.driver import Driver
from kvpager.errors import BadInput, CapacityError
from kvpager.pager import Pager
from kvpager.policies.base import Policy
from kvpager.prefetch.base import Prefetcher
from kvpager.replay.stream import Ask, Stream, units_being_written
from kvpager.replay.tally import Counts, Tally
from kvpager.tiers.modelled import ModelledTier

__all__ = ["LEAST_METADATA_BYTES_PER_UNIT", "Replay", "capacity_units", "warmup_steps"]

LEAST_METADATA_BYTES_PER_UNIT = 16
"""What any engine must keep: page-table slot (4), place and flags (4), two float32 scores (8); key summaries come on top.

kvpager's own live cache keeps more: `kvpager.live.budget.METADATA_BYTES_PER_UNIT`.
"""


def warmup_steps(steps: int) -> int:
    """Steps that are replayed but not counted: a quarter, at most 64."""
    return min(steps // 4, 64)


def capacity_units(stream: Stream, hbm_fraction: float, pool: str) -> int:
    """Units that HBM holds in all at a share of all KV; equal and layer pools are rounded down each.

    Raises
    ------
    CapacityError
        If the share is out of range, or a pool could not hold the units that are being written.
    """
    if not 0 < hbm_fraction <= 1:
        raise CapacityError(
            f"an HBM size of {100 * hbm_fraction:g} % of all KV is impossible: give a share above 0 and at most 100 %"
        )
    layers = len(stream.recording.header.layers)
    pools = {"global": 1, "layer": layers, "equal": layers * stream.heads_per_layer}.get(pool)
    if pools is None:
        raise BadInput(f"unknown pool {pool!r}: choose global, layer or equal")
    share = int(hbm_fraction * stream.units / pools + 1e-9)
    least = units_being_written(stream, pool)
    if share < least:
        raise CapacityError(
            f"an HBM size of {100 * hbm_fraction:g} % gives each {pool} pool {share} units, but it needs {least} for units that "
            f"are being written: give at least {100 * least * pools / stream.units:.3g} %"
        )
    return share * pools


class Replay:
    """One run of a policy over a stream.

    Parameters
    ----------
    stream : Stream
        Demand and observations.
    policy : Policy
        Ranks units.
    units : int
        Units that HBM holds in all, from `capacity_units`.
    pool : {"global", "layer", "equal"}
        Who shares them.
    prefetcher : Prefetcher, optional
        Names units to bring early.
    prefetch_share : float
        Most units prefetched in a step, as a share of `units`.
    dram_units : int
        Units of tier 2; 0 = none.
    seed : int
        Of the ties.
    warmup : int, optional
        Steps not counted; default `warmup_steps`.
    check : bool
        Verify laws 4 and 6 after every tick (slow; tests).
    """

    def __init__(
        self,
        stream: Stream,
        policy: Policy,
        units: int,
        *,
        pool: str = "global",
        prefetcher: Prefetcher | None = None,
        prefetch_share: float = 0.01,
        dram_units: int = 0,
        seed: int = 0,
        warmup: int | None = None,
        check: bool = False,
    ) -> None:
        header = stream.recording.header
        if "unread_mass" in policy.needs and stream.setting.observe == "read":
            raise BadInput(f"policy {policy!r} needs the mass of unread units, which no live run has: choose observe all")
        self._bounds = prefetcher is not None and "bound" in prefetcher.needs
        if self._bounds and stream.recording.bound is None:
            raise BadInput(
                f"prefetcher {prefetcher!r} needs key bounds, which this recording lacks: choose another, or record anew"
            )
        self.stream, self.policy, self.prefetcher, self.check = stream, policy, prefetcher, check
        self.warmup = warmup_steps(stream.recording.steps) if warmup is None else warmup
        layers = len(header.layers)
        self.table = UnitTable(
            layers, header.num_kv_heads, header.block_size, stream.recording.head_block_bytes, stream.setting.granularity
        )
        self.table.reserve(stream.units)
        size = self.table.unit_bytes
        whole_step = stream.setting.clock == "step"
        per_step = prefetch_share * units * size
        calls = 1 if whole_step or (prefetcher is not None and prefetcher.when == "step") else layers
        budget = Budget(
            payload_bytes=(0, units * size, dram_units * size, stream.units * size),
            metadata_bytes=stream.units * LEAST_METADATA_BYTES_PER_UNIT,
            staging_bytes=stream.units * size // (1 if whole_step else layers),
            prefetch_bytes_per_tick=per_step / calls,
        )
        self.budget = budget
        self.pager = Pager(self.table, budget, policy, prefetcher, pool=pool, seed=seed)
        if "future" in policy.needs:
            policy.set_future(*self._future())
        if "future_mass" in policy.needs:
            policy.set_future_mass(stream.mass)
        tiers = {DRAM: ModelledTier(DRAM, budget.payload_bytes[DRAM], size), NVME: ModelledTier(NVME, 0, size)}
        self.driver = Driver(self.pager, tiers, moved=lambda tick, moves: self._tally.moved(tick.step, moves))
        self._tally = Tally(stream, self.warmup)

    def run(self, look: Callable[[Tick], None] | None = None) -> Counts:
        """Replay the prefill and every step; return what was counted.

        Parameters
        ----------
        look : callable, optional
            Called at each tick when its demand is about to be judged.
        """
        self._prefill()
        for ask in self.stream.asks:
            self.driver.begin(ask.tick)
            self._turn_block(ask.tick)
            if look is not None:
                look(ask.tick)
            self._tick(ask)
        return self._tally.counts()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _future(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
        """The whole demand in time order; warm-up accesses count nothing."""
        asks = self.stream.asks
        serial = np.repeat(np.arange(len(asks)), [len(ask.units) for ask in asks])
        weight = [ask.asks * (ask.tick.step >= self.warmup) for ask in asks]
        return np.concatenate([ask.units for ask in asks]), serial, np.concatenate(weight)

    def _prefill(self) -> None:
        """Append what the prefill wrote, layer by layer: complete blocks are placed, the open one is held."""
        header, table = self.stream.recording.header, self.table
        complete, rest = divmod(header.context_tokens, header.block_size)
        self._sequence = table.new_sequence()
        table.seal(table.open_many(self._sequence, complete))
        if rest:
            table.open(self._sequence, complete)
        for seen in self.stream.prefill:
            units = table.of_layer(seen.tick.layer)
            sealed = table.sealed[units]
            if rest:
                self.driver.append(seen.tick, units[~sealed])
            self.driver.admit(seen.tick, units[sealed], seen=seen)

    def _tick(self, ask: Ask) -> None:
        resident = self.pager.resident(self.table.of_layer(ask.tick.layer))
        grant = self.driver.ask(Demand(ask.tick, ask.units, ask.asks), seen=lambda: ask.seen)
        self._tally.judged(ask, grant, resident)
        if self._bounds:
            self._tell_bounds(ask.tick)
        self.driver.prefetch(ask.tick)
        if self.check:
            self.pager.check()
            for tier in self.driver.tiers.values():
                tier.check()

    def _tell_bounds(self, tick: Tick) -> None:
        """Hand the prefetcher the key bounds of the tick that was just served."""
        recording, table = self.stream.recording, self.table
        blocks = recording.open_block(tick.step)
        if self.prefetcher is None or recording.bound is None:
            return
        for layer in range(table.num_layers) if tick.layer == ALL_LAYERS else (tick.layer,):
            bound = recording.bound[tick.step, layer, :, :blocks].astype(np.float32)
            if table.heads_per_layer == 1:  # one unit for all heads, asked for if one of them asks
                bound = bound.max(axis=0, keepdims=True)
            units = table.of_layer(layer).reshape(-1, table.heads_per_layer)[:blocks].T
            self.prefetcher.on_bound(Tick(tick.step, layer), units, bound)

    def _turn_block(self, tick: Tick) -> None:
        """At a step's start, seal the block that the last call filled; open the next one, layer by layer."""
        header, table = self.stream.recording.header, self.table
        position = header.context_tokens + tick.step
        if position % header.block_size:
            return
        block = position // header.block_size
        if tick.layer <= 0:
            if block:
                full = self._units_of(block - 1)
                full = full[~table.sealed[full]]
                table.seal(full)
                self.driver.seal(tick, full)
            table.open(self._sequence, block)
        new = self._units_of(block)
        self.driver.append(tick, new if tick.layer == ALL_LAYERS else new[table.layer[new] == tick.layer])

    def _units_of(self, block: int) -> NDArray[np.int32]:
        base = block * self.table.units_per_block
        return np.arange(base, base + self.table.units_per_block, dtype=np.int32)
