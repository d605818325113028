"""A system: accelerators, the tiers behind them, the paths between, and the bill.

Bandwidth to a tier is the least of three limits that are kept apart: the *upstream* links into the accelerators, the sum
over the *endpoints'* own links, and the *media* themselves. Four endpoints of 64 GB/s behind one link of 64 GB/s are
64 GB/s, not 256. Limits are of the whole system; tiers that share the upstream links share their bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpager.errors import BadInput, UnknownName
from kvpager.evidence import Quantity, propagate
from kvpager.hardware.parts import Accelerator, Link, Medium

__all__ = ["STRATEGIES", "BillItem", "System", "TierPath"]

STRATEGIES = {
    "resident": "all KV of running requests stays in HBM",
    "tiered": "KV of running requests is spread over the tiers, and read from them as attention asks for it",
    "offload": "whole contexts wait in the tiers and come back to HBM before they run",
    "prefix-cache": "HBM only; blocks of finished requests are kept for others with the same prefix",
    "recompute": "HBM only; what does not fit is dropped and computed again",
}


@dataclass(frozen=True, slots=True)
class BillItem:
    """One line of the bill of materials.

    Parameters
    ----------
    name, title : str
        ``section/key`` in the catalogue; what it is.
    quantity : float
        How many.
    price_usd : Quantity, optional
        Price of one; None = not priced, hence missing from every sum.
    power_w : Quantity, optional
        Power of one; None = not known, hence missing from every sum.
    """

    name: str
    title: str
    quantity: float
    price_usd: Quantity | None
    power_w: Quantity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPath:
    """A tier below HBM and the way to it.

    Parameters
    ----------
    name : str
        ``"dram"``, ``"cxl"`` or ``"nvme"``.
    medium : Medium
        What it is made of.
    count : int
        Endpoints: modules, drives or boxes.
    link : Link, optional
        Each endpoint's own link; None where the medium sits on the memory bus of the host.
    upstream : Link
        The link into the accelerators that all endpoints share.
    upstream_count : int
        How many of these there are.
    """

    name: str
    medium: Medium
    count: int
    upstream: Link
    upstream_count: int
    link: Link | None = None

    def per_link(self) -> Quantity | None:
        """What one endpoint's own link reaches; None where it has none."""
        return None if self.link is None else self.link.reached_bytes_per_s()

    def aggregate(self) -> Quantity | None:
        """What all endpoints' links reach together, whatever the upstream can take; None where they have none."""
        one = self.per_link()
        return None if one is None else _times(f"{self.name} endpoints", self.count, one)

    def limits(self, *, write: bool = False) -> dict[str, Quantity]:
        """Limits by name, ``upstream``, ``endpoints`` (if they have links) and ``media``, each with its own efficiency."""
        rate = self.medium.write_bytes_per_s if write else self.medium.read_bytes_per_s
        found = {
            "upstream": _times(f"{self.name} upstream", self.upstream_count, self.upstream.reached_bytes_per_s()),
            "media": _times(f"{self.name} media", self.count, rate),
        }
        endpoints = self.aggregate()
        return found if endpoints is None else found | {"endpoints": endpoints}

    def bottleneck(self, *, write: bool = False) -> str:
        """Name of the smallest limit."""
        limits = self.limits(write=write)
        return min(limits, key=lambda name: limits[name].value)

    def capacity_bytes(self) -> Quantity:
        """Capacity of all endpoints."""
        return _times(f"{self.name} capacity_bytes", self.count, self.medium.capacity_bytes)

    def latency_s(self) -> Quantity | None:
        """Fixed time of one transfer: the links' and the medium's, summed; None if none of them is known."""
        parts = [self.upstream.latency_s, None if self.link is None else self.link.latency_s, self.medium.latency_s]
        known = [part for part in parts if part is not None]
        return _sum(f"{self.name} latency_s", "s", known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A machine that can be planned for.

    Parameters
    ----------
    name, title : str
        Key in the catalogue; what it is.
    accelerator : Accelerator
        The kind of accelerator.
    accelerators : int
        How many.
    tp : int
        Accelerators that share one copy of the model by tensor parallelism; the rest are further replicas.
    strategy : str
        A key of `STRATEGIES`.
    tiers : tuple of TierPath
        Tiers below HBM.
    bill : tuple of BillItem
        What is bought.
    missing : tuple of str
        What the bill leaves out, in words.
    electricity_usd_per_kwh : Quantity
        Price of electricity.
    pue : Quantity
        Power of the building over power of the machine.
    weights_dtype, kv_dtype : str
        Element types that this system stands for.
    hypothetical : bool
        Whether no such machine can be bought.
    note : str
        What a reader must know.
    """

    name: str
    title: str
    accelerator: Accelerator
    accelerators: int
    electricity_usd_per_kwh: Quantity
    pue: Quantity
    tp: int = 1
    strategy: str = "resident"
    tiers: tuple[TierPath, ...] = ()
    bill: tuple[BillItem, ...] = ()
    missing: tuple[str, ...] = ()
    weights_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    hypothetical: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be: no accelerator, a group that does not divide them, an unknown strategy."""
        if self.accelerators < 1 or self.tp < 1 or self.accelerators % self.tp:
            raise BadInput(
                f"system {self.name!r}: {self.accelerators} accelerators cannot be split into groups of tp = {self.tp}: "
                "give at least one accelerator, and a tp that divides their number"
            )
        if self.strategy not in STRATEGIES:
            raise UnknownName(f"system {self.name!r}: strategy {self.strategy!r} is unknown: use one of {', '.join(STRATEGIES)}")

    @property
    def replicas(self) -> int:
        """Copies of the model that run side by side."""
        return self.accelerators // self.tp

    def tier(self, name: str) -> TierPath:
        """Return the tier called `name`; raise `UnknownName` with the names there are. HBM is no path: ask `bandwidth`."""
        for path in self.tiers:
            if path.name == name:
                return path
        names = ", ".join(["hbm", *(path.name for path in self.tiers)])
        raise UnknownName(f"system {self.name!r} has no path to a tier {name!r}: its tiers are {names}, and hbm needs no path")

    def bandwidth(self, tier: str, *, write: bool = False) -> Quantity:
        """Bytes a second between the accelerators and a tier, of the whole system and one direction.

        Parameters
        ----------
        tier : str
            ``"hbm"`` or the name of a tier of this system.
        write : bool
            Towards the tier instead of from it.

        Returns
        -------
        Quantity
            Its name says which limit binds; its inputs are all limits.

        Raises
        ------
        UnknownName
            If the system has no such tier.

        Notes
        -----
        min(upstream, endpoints, media), each with its own efficiency. For HBM: accelerators x peak x efficiency.
        Source: the topology rule that note 000's diagram 9.1 leaves out.
        """
        if tier == "hbm":
            one = propagate(
                f"{self.accelerator.name} hbm reached",
                "B/s",
                "peak x efficiency",
                lambda peak, efficiency: peak * efficiency,
                [self.accelerator.hbm_bytes_per_s, self.accelerator.hbm_efficiency],
            )
            return _times("hbm bandwidth", self.accelerators, one)
        path = self.tier(tier)
        limits = path.limits(write=write)
        return propagate(
            f"{tier} {'write' if write else 'read'} bandwidth, limited by {path.bottleneck(write=write)}",
            "B/s",
            f"min({', '.join(limits)})",
            lambda *values: min(values),
            list(limits.values()),
        )

    def capacity_bytes(self, tier: str) -> Quantity:
        """Bytes of a tier of the whole system; for ``"hbm"``, of what the driver reports."""
        if tier == "hbm":
            return _times("hbm capacity_bytes", self.accelerators, self.accelerator.hbm_bytes)
        return self.tier(tier).capacity_bytes()

    def power_w(self) -> Quantity:
        """Sum over the bill of quantity times power, for the items whose power is known."""
        known = [(item, item.power_w) for item in self.bill if item.power_w is not None]
        return _sum("power_w", "W", [_times(f"{item.name} power_w", item.quantity, power) for item, power in known])

    def capex_usd(self) -> Quantity:
        """Sum over the bill of quantity times price, for the items that have a price; see `left_out`."""
        priced = [(item, item.price_usd) for item in self.bill if item.price_usd is not None]
        return _sum("capex_usd", "USD", [_times(f"{item.name} price_usd", item.quantity, price) for item, price in priced])

    def left_out(self) -> tuple[str, ...]:
        """What the sums do not count: items of the bill without a price or power, then `missing`."""
        unpriced = [f"price of {item.title}" for item in self.bill if item.price_usd is None]
        unpowered = [f"power of {item.title} by itself" for item in self.bill if item.power_w is None]
        return (*unpriced, *unpowered, *self.missing)


def _times(name: str, count: float, one: Quantity) -> Quantity:
    return propagate(name, one.unit, f"{count:g} x {one.name}", lambda value: count * value, [one])


def _sum(name: str, unit: str, parts: Sequence[Quantity]) -> Quantity:
    if not parts:
        raise BadInput(f"{name}: no item of the bill has one: add it to the catalogue entries that the bill names")
    return propagate(name, unit, " + ".join(part.name for part in parts), lambda *values: sum(values), parts)
