"""The parts a system is built of. Every number is a `Quantity`: label, source, date and range come with it.

A field's suffix is its unit: ``_bytes``, ``_bytes_per_s``, ``_flops_per_s``, ``_s``, ``_w``, ``_usd``; none = a ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvpager.evidence import Quantity, propagate

__all__ = ["KINDS", "Accelerator", "Link", "Medium", "Part", "SizedRate"]

KINDS = ("hbm", "dram", "cxl", "nvme", "disk", "page-cache")
"""Kinds of medium; ``"disk"`` is one that the probe measured without knowing what it is."""


@dataclass(frozen=True, slots=True)
class SizedRate:
    """A rate reached with transfers of one size.

    Parameters
    ----------
    size_bytes : int
        Bytes of one transfer.
    rate_bytes_per_s : Quantity
        The rate.
    """

    size_bytes: int
    rate_bytes_per_s: Quantity


def _rate_at(rates: tuple[SizedRate, ...], size_bytes: float, otherwise: Quantity) -> Quantity:
    """Rate at a size: linear in the logarithm of the size between known ones, constant outside them."""
    if not rates:
        return otherwise
    below = max((entry for entry in rates if entry.size_bytes <= size_bytes), key=lambda entry: entry.size_bytes, default=None)
    above = min((entry for entry in rates if entry.size_bytes >= size_bytes), key=lambda entry: entry.size_bytes, default=None)
    if below is None or above is None or below is above:
        nearest = below or above
        return otherwise if nearest is None else nearest.rate_bytes_per_s
    share = math.log(size_bytes / below.size_bytes) / math.log(above.size_bytes / below.size_bytes)
    return propagate(
        f"{otherwise.name} at {size_bytes:g} B",
        "B/s",
        f"interpolated over log(transfer bytes) between {below.size_bytes} B and {above.size_bytes} B",
        lambda low, high: low + share * (high - low),
        [below.rate_bytes_per_s, above.rate_bytes_per_s],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection, one direction of it.

    Parameters
    ----------
    name, title : str
        Key in the catalogue; what it is.
    bandwidth_bytes_per_s : Quantity
        What the standard or the vendor promises for one direction.
    efficiency : Quantity
        Share of it that copies of a megabyte and more reach.
    latency_s : Quantity, optional
        Fixed time before the first byte of a transfer; None = not known, counted as none.
    bus : str
        Standard it obeys (`bus.BUSES`), or empty for one without lanes.
    lanes : int
        Lanes; 0 without.
    by_size : tuple of SizedRate
        Measured rates by transfer size, where known.
    """

    name: str
    title: str
    bandwidth_bytes_per_s: Quantity
    efficiency: Quantity
    latency_s: Quantity | None = None
    bus: str = ""
    lanes: int = 0
    by_size: tuple[SizedRate, ...] = ()

    def reached_bytes_per_s(self) -> Quantity:
        """Bandwidth times efficiency."""
        return propagate(
            f"{self.name} reached",
            "B/s",
            "bandwidth x efficiency",
            lambda bandwidth, efficiency: bandwidth * efficiency,
            [self.bandwidth_bytes_per_s, self.efficiency],
        )

    def rate_at(self, size_bytes: float) -> Quantity:
        """Rate of transfers of `size_bytes`, where rates by size are known; else `reached_bytes_per_s`."""
        return _rate_at(self.by_size, size_bytes, self.reached_bytes_per_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """What keeps blocks outside the accelerator: one module, drive or box.

    Parameters
    ----------
    name, title : str
        Key in the catalogue; what it is.
    kind : str
        One of `KINDS`.
    capacity_bytes : Quantity
        Capacity.
    read_bytes_per_s, write_bytes_per_s : Quantity
        Sustained rate of one direction by itself.
    mixed_bytes_per_s : Quantity, optional
        Reads and writes at once, summed over both directions: what vendors of CXL modules print.
    latency_s : Quantity, optional
        Fixed time of one small access; None = not known, counted as none.
    power_w : Quantity, optional
        Power of one.
    endurance_bytes : Quantity, optional
        Bytes that may be written in its life; None for memory.
    bus : str
        Standard of its connector, or empty.
    lanes : int
        Lanes of it.
    price_usd : Quantity, optional
        Price of one.
    price_usd_per_byte : Quantity, optional
        Price by capacity, if there is no price of one.
    read_by_size, write_by_size : tuple of SizedRate
        Rates by transfer size, where known.
    """

    name: str
    title: str
    kind: str
    capacity_bytes: Quantity
    read_bytes_per_s: Quantity
    write_bytes_per_s: Quantity
    mixed_bytes_per_s: Quantity | None = None
    latency_s: Quantity | None = None
    power_w: Quantity | None = None
    endurance_bytes: Quantity | None = None
    bus: str = ""
    lanes: int = 0
    price_usd: Quantity | None = None
    price_usd_per_byte: Quantity | None = None
    read_by_size: tuple[SizedRate, ...] = ()
    write_by_size: tuple[SizedRate, ...] = ()

    def read_at(self, size_bytes: float) -> Quantity:
        """Read rate with transfers of `size_bytes`; without rates by size, the sustained one."""
        return _rate_at(self.read_by_size, size_bytes, self.read_bytes_per_s)

    def write_at(self, size_bytes: float) -> Quantity:
        """Write rate with transfers of `size_bytes`; without rates by size, the sustained one."""
        return _rate_at(self.write_by_size, size_bytes, self.write_bytes_per_s)

    def unit_price_usd(self) -> Quantity | None:
        """Price of one, directly or by capacity; None if the catalogue has none."""
        if self.price_usd is not None or self.price_usd_per_byte is None:
            return self.price_usd
        return propagate(
            f"{self.name} price_usd",
            "USD",
            "capacity x price per byte",
            lambda capacity, price: capacity * price,
            [self.capacity_bytes, self.price_usd_per_byte],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A GPU or its like.

    Parameters
    ----------
    name, title : str
        Key in the catalogue; what it is.
    hbm_bytes : Quantity
        Memory that its driver reports as present, before any program runs.
    hbm_marketed_bytes : Quantity
        Memory that its data sheet names.
    hbm_bytes_per_s : Quantity
        Peak rate of its memory.
    hbm_efficiency : Quantity
        Share of the peak that streaming kernels reach.
    bf16_flops_per_s : Quantity
        Dense peak with bfloat16 inputs; never the doubled figure for sparse ones.
    fp8_flops_per_s : Quantity, optional
        Dense peak with 8-bit floating point inputs; None where the part has none.
    power_w : Quantity
        Thermal design power.
    host_link : Link
        Its connection to the host.
    price_usd, rent_usd_per_h : Quantity, optional
        Price of one; rent of one for an hour.
    hbm_latency_s : Quantity, optional
        Time of one dependent access.
    """

    name: str
    title: str
    hbm_bytes: Quantity
    hbm_marketed_bytes: Quantity
    hbm_bytes_per_s: Quantity
    hbm_efficiency: Quantity
    bf16_flops_per_s: Quantity
    power_w: Quantity
    host_link: Link
    fp8_flops_per_s: Quantity | None = None
    price_usd: Quantity | None = None
    rent_usd_per_h: Quantity | None = None
    hbm_latency_s: Quantity | None = None

    def unit_price_usd(self) -> Quantity | None:
        """Price of one; None if the catalogue has none."""
        return self.price_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Anything else on a bill: host, switch, enclosure.

    Parameters
    ----------
    name, title : str
        Key in the catalogue; what it is.
    power_w, price_usd : Quantity, optional
        Power and price of one.
    """

    name: str
    title: str
    power_w: Quantity | None = None
    price_usd: Quantity | None = None

    def unit_price_usd(self) -> Quantity | None:
        """Price of one; None if the catalogue has none."""
        return self.price_usd
