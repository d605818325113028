"""What a bus can carry at most, from its standard: the bound that no catalogue value and no measurement may exceed.

One direction, after line coding and flit framing, before packet headers: real transfers stay below it.
"""

from __future__ import annotations

from kvpager.errors import PhysicalBoundError, UnknownName
from kvpager.evidence import Evidence, Quantity

__all__ = ["BUSES", "bus_limit_bytes_per_s", "refuse_above"]

_LINE_CODE = 128 / 130
_FLIT = 242 / 256  # 256-byte flits: 236 bytes of packets and 6 of link layer, beside 8 of CRC and 6 of FEC

BUSES: dict[str, tuple[float, float]] = {
    # transfers a second and lane, one bit each; share of them that carries data
    "pcie-3": (8e9, _LINE_CODE),
    "pcie-4": (16e9, _LINE_CODE),
    "pcie-5": (32e9, _LINE_CODE),
    "pcie-6": (64e9, _FLIT),
    "cxl-2": (32e9, _LINE_CODE),
    "cxl-3": (64e9, _FLIT),
}


def bus_limit_bytes_per_s(bus: str, lanes: int) -> Quantity:
    """Most that one direction of `lanes` lanes of `bus` can carry.

    Parameters
    ----------
    bus : str
        A key of `BUSES`, for example ``"pcie-5"``.
    lanes : int
        Lanes, >= 1.

    Returns
    -------
    Quantity
        Bytes a second; evidence: analytical on a vendor's specification.

    Raises
    ------
    UnknownName
        For another bus.

    Notes
    -----
    rate x lanes / 8 x coding. Source: PCI Express Base Specification 3.0 to 6.0 and CXL 2.0 to 3.1 (line rates and
    framing, general knowledge); 64 GT/s x 16 gives the 121 GB/s of note 004.
    """
    if bus not in BUSES:
        raise UnknownName(f"bus {bus!r} is unknown: use one of {', '.join(BUSES)}")
    rate, coding = BUSES[bus]
    return Quantity(
        rate * lanes / 8 * coding,
        "B/s",
        frozenset({Evidence.VENDOR_SPEC, Evidence.ANALYTICAL}),
        f"{rate / 1e9:g} GT/s x {lanes} lanes / 8 x {coding:.4f}",
        "the bus standard",
        f"{bus}-x{lanes} limit",
    )


def refuse_above(what: str, rate: Quantity, limit: Quantity) -> None:
    """Raise `PhysicalBoundError` if `rate`, or the top of its range, exceeds `limit` (law 7)."""
    top = rate.ends[1]
    if top > limit.value * (1 + 1e-9):
        raise PhysicalBoundError(
            f"{what}: {top / 1e9:.4g} GB/s is more than {limit.name.removesuffix(' limit')} can carry in one direction, "
            f"{limit.value / 1e9:.4g} GB/s ({limit.formula}): correct the value, or name the bus it was measured on"
        )
