"""The tiered store: one pool of HBM over one backing store, shared by all the caches of a model."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvpager.core import DRAM, HBM, NVME, TIER_NAMES, Ids, Seen, Tick, UnitTable
from kvpager.driver import Driver
from kvpager.errors import BadInput
from kvpager.live.budget import LANES, LiveBudget
from kvpager.live.counts import Counts
from kvpager.live.kernels import kernel_for
from kvpager.live.layout import Layout
from kvpager.live.memory import HBMMemory, SplitMemory
from kvpager.live.park import Shelf
from kvpager.live.step import Kernel
from kvpager.live.summaries import SUMMARIES, Summary
from kvpager.pager import Pager
from kvpager.policies import CLAIRVOYANT, Policy, make_policy
from kvpager.policies.scores import MassEMA
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.selectors import SELECTORS
from kvpager.selectors.base import Selector, View
from kvpager.slab.store import SlabStore
from kvpager.tiers.arena import Arena
from kvpager.tiers.dram import DramTier
from kvpager.tiers.slab import SlabTier
from kvpager.traces.runcounts import tier_counters

__all__ = ["TieredStore", "make_selector"]


def make_selector(text: str) -> Selector:
    """Build a selector for live use from its written form.

    Raises
    ------
    BadInput
        If it needs the mass of blocks that were not read: no live run has it (law 11).
    """
    selector: Selector = configure(SELECTORS, text)
    if "mass" in selector.needs:
        raise BadInput(
            f"selector {text!r} needs the mass of unread blocks, which no live run has: choose outlier_mean or key_bound"
        )
    return selector


class TieredStore:
    """HBM, DRAM and disk for the KV of one model, and the Pager that decides what is where.

    Parameters
    ----------
    budget : LiveBudget
        Sizes, from `live_budget`.
    path : path
        Directory of the backing store; made if need be.
    fingerprint : str
        Of the model and the layout. A store keeps to one.
    layer_numbers : tuple of int
        The model's numbers of the tiered layers, for messages.
    policy : str
        Ranks units; written as on the command line.
    pool : {"global", "layer", "equal"}
        Who shares HBM.
    prefetcher : str, optional
        Names units to bring early.
    selector : str, optional
        The selector whose key summaries are kept; without one, only exact attention is possible.
    disk_bytes : int, optional
        Size of the backing store at most; default twice what the budget's KV takes there, at least 256 MiB.
    seed : int
        Of the ties.
    lockstep : bool
        Wait at each tick for everything submitted before, so that a run can be repeated exactly.
    device : str
        Where the model is, and with it tiers 0 and 1: ``"cpu"``, or a GPU, e.g. ``"cuda:0"``.
    make_table, make_driver : callable
        Stand-ins for `UnitTable` and `Driver`: those that log.

    Raises
    ------
    StoreError
        If the directory is in use, cannot be used, or belongs to another model or layout.
    CapacityError
        If a pool is too small.
    """

    def __init__(
        self,
        budget: LiveBudget,
        path: str | PathLike[str],
        *,
        fingerprint: str,
        layer_numbers: tuple[int, ...],
        policy: str = "blend",
        pool: str = "global",
        prefetcher: str | None = None,
        selector: str | None = None,
        disk_bytes: int | None = None,
        seed: int = 0,
        lockstep: bool = False,
        device: str = "cpu",
        make_table: Callable[..., UnitTable] = UnitTable,
        make_driver: Callable[..., Driver] = Driver,
    ) -> None:
        layout = self.layout = budget.layout
        self.budget, self.fingerprint, self.layer_numbers = budget, fingerprint, layer_numbers
        self.policy_text, self.selector_text, self.counts = policy, selector, Counts()
        ranks = make_policy(policy)
        self.selector = None if selector is None else make_selector(selector)
        prefetch = None if prefetcher is None else configure(PREFETCHERS, prefetcher)
        _check(policy, ranks, selector, self.selector, layout)
        if prefetch is not None and "bound" in prefetch.needs:
            raise BadInput(f"prefetcher {prefetcher!r} needs key bounds, which a live run does not hand on: choose another")
        name = self.summary_name = getattr(self.selector, "summary", None)
        self.summary: Summary | None = (
            SUMMARIES[name](layout.layers, layout.kv_heads, layout.k_dim, layout.block_size) if name else None
        )
        self.table = make_table(layout.layers, layout.kv_heads, layout.block_size, layout.unit_bytes)
        self.scores = MassEMA(self.table, 0.2) if self.selector is not None and "score" in self.selector.needs else None
        record = layout.parts * layout.unit_bytes + 2 * 4096
        disk = max(256 << 20, 2 * budget.units // layout.kv_heads * record) if disk_bytes is None else disk_bytes
        self.path = Path(path)
        self.slabs = SlabStore(
            path, parts=layout.parts, part_bytes=layout.unit_bytes, layers=layout.layers, fingerprint=fingerprint,
            capacity_bytes=disk, slab_bytes=min(64 << 20, max(disk // 4 // 4096 * 4096, record)),
        )  # fmt: skip
        try:
            arena = _arena(budget.hbm_units + budget.staging_units + budget.key_units, layout.unit_bytes, device)
            self.memory = SplitMemory(self.table, arena) if layout.split else HBMMemory(self.table, arena)
            memory = torch.as_tensor(arena.memory)
            self.keys, self.values = layout.keys(memory), layout.values(memory)
            held = budget.pager(disk, prefetching=prefetch is not None)
            self.pager = Pager(self.table, held, ranks, prefetch, pool=pool, seed=seed, lanes=LANES)
            self.disk = SlabTier(self.table, self.slabs, arena, self.memory.key_slots if layout.split else None)
            self.dram = DramTier(self.table, arena, budget.dram_units)
            self.driver = make_driver(self.pager, {DRAM: self.dram, NVME: self.disk}, memory=self.memory, lockstep=lockstep)
            self.kernel: Kernel = kernel_for(
                kv_heads=layout.kv_heads, group=layout.group, k_dim=layout.k_dim, v_dim=layout.v_dim,
                block_size=layout.block_size, element=layout.element, device=arena.device,
            )  # fmt: skip
        except BaseException:
            self.slabs.close()
            raise
        self.shelf = Shelf(self)
        self.step = -2

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Make everything durable and give memory and directory back."""
        self.slabs.close()
        self.memory.arena.close()
        self.dram.close()

    @property
    def device(self) -> str:
        """Where tiers 0 and 1 are."""
        return self.memory.arena.device

    def index(self, units: Ids) -> Tensor:
        """Return the slots of `units` as an index into `values`."""
        return torch.from_numpy(self.memory.slots(units).astype(np.int64)).to(self.values.device)

    def key_index(self, units: Ids) -> Tensor:
        """Return the slots of the keys of `units` as an index into `keys`."""
        return torch.from_numpy(self.memory.key_slots(units).astype(np.int64)).to(self.keys.device)

    def fill(self) -> dict[str, float]:
        """Return how full each configured tier is, as a share, by name."""
        shares = {TIER_NAMES[HBM]: float(self.pager.pools.used.sum() / self.pager.pools.capacity.sum())}
        if self.dram.capacity_bytes:
            shares[TIER_NAMES[DRAM]] = self.dram.used_bytes() / self.dram.capacity_bytes
        return shares | {TIER_NAMES[NVME]: self.slabs.used_bytes / self.disk.capacity_bytes}

    def document(self) -> dict[str, Any]:
        """Return what was configured and counted, ready for JSON. Tiers 0 to 2 of a CPU are one memory: emulated."""
        budget, counts = self.budget, self.counts
        per_tier = counts.per_tier()
        for number, numbers in tier_counters({DRAM: self.dram, NVME: self.disk}, self.layout.unit_bytes).items():
            per_tier[number] |= numbers
        return {
            "mode": "exact" if self.selector is None else "selective",
            "access": "every complete block (dense attention); open block not counted"
            if self.selector is None
            else self.selector.describe(),
            "policy": self.policy_text,
            "pool": self.pager.pools.kind,
            "hbm_fraction": budget.hbm_fraction,
            "hbm_payload_bytes": budget.payload_bytes,
            "staging_bytes": budget.staging_bytes,
            "metadata_bytes": budget.metadata_bytes,
            "per_tier": per_tier,
            "block_hit_ratio": counts.block_hit_ratio,
            "late_prefetch_units": counts.late,
            "read_mass": counts.read_mass,
            "recomputed_tokens": counts.recomputed_tokens,
            "checksum_failures": self.slabs.stats.checksum_failures,
            "idle_tiers": [name for name, tier in per_tier.items() if self._idle(name, tier)],
            "evidence": "emulated" if self.device == "cpu" else "measured",
        }

    def _idle(self, name: str, tier: dict[str, Any]) -> bool:
        """Whether a configured tier got no traffic at all (law 10)."""
        configured = name == TIER_NAMES[NVME] or (name == TIER_NAMES[DRAM] and self.dram.capacity_bytes > 0)
        return configured and not any(tier.get("read_units", {})) and not any(tier.get("written_units", {}))

    def next_step(self) -> int:
        """Number of the forward call that starts now; the first one is -1."""
        self.step += 1
        return self.step

    def release(self, tick: Tick, units: Ids) -> None:
        """Forget units whose last holder has gone."""
        if len(units):
            self.driver.release(tick, units)
            self.memory.forget(units)
            if self.summary is not None:
                self.summary.drop(np.unique(units // self.table.units_per_block))

    def summarise(self, bases: Ids) -> None:
        """Keep the key summaries of blocks that were sealed, while they are still in HBM."""
        if self.summary is None:
            return
        shape = (len(bases), self.layout.kv_heads, self.layout.block_size, self.layout.k_dim)
        for layer in range(self.layout.layers):
            keys = self.keys[self.key_index(self.table.at_layer(bases, layer))].float()
            self.summary.put(layer, bases // self.table.units_per_block, keys.mT.reshape(shape).cpu().numpy())

    def load_keys(self, units: Ids) -> None:
        """Read the keys of adopted `units` to where keys stay, if they stay; units whose keys are damaged are lost."""
        if isinstance(self.memory, SplitMemory) and len(units):
            good = self.disk.load_keys(units, self.memory.hold_keys(units))
            if not good.all():
                self.driver.recover(units[~good])

    def exact_scores(
        self, view: View, candidates: NDArray[np.bool_], query: NDArray[np.float32], bases: Ids, softcap: float
    ) -> NDArray[np.float32]:
        """Score candidates by their keys: each block's share of the mass on all of them, mean over the group.

        Parameters
        ----------
        view : View
            What they were chosen by.
        candidates : bool [kv_heads, blocks]
            Which to score.
        query : float32 [kv_heads * group, k_dim]
            Scaled.
        bases : int32 [blocks]
            First units of the blocks.
        softcap : float
            Of the logits; 0 = none.

        Returns
        -------
        float32 [kv_heads, blocks]
            ``-inf`` for the others.
        """
        heads, blocks = candidates.shape
        place = np.flatnonzero(candidates)
        head = place // blocks
        units = bases[place - head * blocks] + (view.tick.layer * heads + head).astype(np.int32)
        starts = np.searchsorted(place, np.arange(0, heads * blocks + 1, blocks)).astype(np.int32)
        scores = np.full(candidates.shape, -np.inf, np.float32)
        slots = self.memory.key_slots(units)
        scores[candidates] = self.kernel.key_mass(query, self.memory.arena.memory, slots, starts, softcap)
        return scores

    def saw(self, seen: Seen) -> Seen:
        """Take note of the mass of what was read, and pass it on."""
        if self.scores is not None:
            self.scores.on_new()
            self.scores.on_mass(seen)
        return seen

    def view(self, tick: Tick, selector: Selector, query: NDArray[np.float32], bases: Ids, previous: NDArray[np.bool_]) -> View:
        """Return what `selector` may look at.

        Parameters
        ----------
        tick : Tick
            Now.
        selector : Selector
            Decides what is computed.
        query : float32 [kv_heads, group, k_dim]
            Scaled.
        bases : int32 [blocks]
            First units of the complete blocks.
        previous : bool [kv_heads, blocks]
            What was chosen one step ago.
        """
        units: Ids = self.table.at_layer(bases, tick.layer).reshape(len(bases), -1).T
        bound = score = None
        if "bound" in selector.needs:
            if self.summary is None or getattr(selector, "summary", None) != self.summary_name:
                raise BadInput(
                    f"selector {selector!r} needs key summaries that this store does not keep: open it with that selector"
                )
            bound = self.summary.score(tick.layer, query, bases // self.table.units_per_block)
        if self.scores is not None:
            self.scores.on_new()
            score = self.scores.scores[units].astype(np.float32)
        resident = np.zeros(previous.shape, np.bool_) if selector.residency_free else self.pager.resident(units)
        return View(tick, bound, None, resident, previous, None, score, self.layout.block_size)


def _arena(slots: int, slot_bytes: int, device: str) -> Arena:
    """Memory of tiers 0 and 1 where the model is."""
    if device == "cpu":
        return Arena(slots, slot_bytes)
    from kvpager.tiers.device import DeviceArena

    return DeviceArena(slots, slot_bytes, device)


def _check(policy: str, ranks: Policy, text: str | None, selector: Selector | None, layout: Layout) -> None:
    """Refuse what a live run cannot give a policy or selector."""
    if ranks.needs & CLAIRVOYANT:
        raise BadInput(f"policy {policy!r} needs what no live run has (unread mass, or the future): choose another")
    if getattr(selector, "rerank", 0) and not layout.split:
        raise BadInput(
            f"selector {text!r} ranks by exact keys, and here they leave fast memory with their values: keep the keys there "
            "(--keys fast), or read more instead (--read)"
        )
