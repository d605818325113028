"""Moving bytes: links, fetch time, queueing, write traffic and wear. Pure and vectorised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvpager.analysis.capacity import Values

__all__ = [
    "demand_bytes_per_s",
    "drive_life_s",
    "drive_writes_per_day",
    "effective_bandwidth_bytes_per_s",
    "fetch_s",
    "link_bytes_per_s",
    "note_effective_latency_s",
    "queue_wait_s",
    "size_bandwidth_bytes_per_s",
    "utilisation",
    "write_bytes_per_s",
]


def link_bytes_per_s(transfers_per_s: Values, lanes: Values, encoding: Values) -> Values:
    """Payload rate of a serial link in one direction: ``transfers/s x lanes / 8 x encoding``.

    Encodings: 128/130 (PCIe 3 to 5, CXL 1 and 2), 242/256 (PCIe 6, CXL 3: a 256-byte flit less its CRC and FEC).
    Note 004 table 1 has 64 GT/s x 16 / 8 x 242/256 = 121 GB/s. Source: PCI Express base specification, revisions 5 and 6.
    """
    return transfers_per_s * lanes / 8.0 * encoding


def effective_bandwidth_bytes_per_s(
    upstream_bytes_per_s: Values, endpoints_bytes_per_s: Values, media_bytes_per_s: Values, efficiency: Values = 1.0
) -> Values:
    """Rate that one accelerator can draw through a topology: ``min(upstream, sum of endpoints, media) x efficiency``.

    Four endpoints of 64 GB/s behind one x16 port of 64 GB/s deliver 64, not 256. Source: mission row 8.
    """
    rate: Values = np.minimum(np.minimum(upstream_bytes_per_s, endpoints_bytes_per_s), media_bytes_per_s) * efficiency
    return rate


def size_bandwidth_bytes_per_s(piece_bytes: Values, sizes_bytes: Sequence[float], rates_bytes_per_s: Sequence[float]) -> Values:
    """Rate at a transfer size, from measured points: linear in the logarithm of the size, constant outside them.

    Parameters
    ----------
    piece_bytes : float or array
        Size of one transfer, > 0.
    sizes_bytes, rates_bytes_per_s : sequence of float
        Measured points, sizes ascending.

    Returns
    -------
    float or array
        Bytes per second.

    Notes
    -----
    Object size moves the rate by a factor of 3.6 on one fabric (AWS EFA figures quoted by the Mooncake project, 2026).
    """
    rate: Values = np.interp(np.log(piece_bytes), np.log(sizes_bytes), rates_bytes_per_s)
    return rate


def fetch_s(size_bytes: Values, bandwidth_bytes_per_s: Values, pieces: Values = 1.0, t0_s: Values = 0.0) -> Values:
    """Time to move `size_bytes` in `pieces` transfers one after another: ``pieces x t0 + bytes / bandwidth``.

    Parameters
    ----------
    size_bytes : float or array
        Bytes in all.
    bandwidth_bytes_per_s : float or array
        Rate at the size of one piece.
    pieces : float or array
        Transfers; 160 for a block of 80 layers kept K and V apart.
    t0_s : float or array
        Fixed time of one transfer.

    Returns
    -------
    float or array
        Seconds, without queueing.

    Notes
    -----
    ``t0 = 0`` is the formula of note 004 table 1. Source: mission row 46.
    """
    return pieces * t0_s + size_bytes / bandwidth_bytes_per_s


def utilisation(demand_bytes_per_s: Values, bandwidth_bytes_per_s: Values) -> Values:
    """Share of a link that a demand takes (note 000 part 4); above 1 it cannot be served."""
    return demand_bytes_per_s / bandwidth_bytes_per_s


def queue_wait_s(service_s: Values, load: Values) -> Values:
    """Mean wait before service on one link with random arrivals of equal transfers; infinite from load 1 on.

    ``W = S rho / (2 (1 - rho))``: the M/D/1 queue. Source: Pollaczek 1930 and Khinchin 1932, in Kleinrock, Queueing
    Systems I, 1975, section 5.6. Bursts (a topic change asks for everything at once) are worse than random arrivals.
    """
    free = np.maximum(1.0 - np.asarray(load, dtype=np.float64), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        wait: Values = np.where(free > 0.0, service_s * np.asarray(load) / (2.0 * free), np.inf)
    return wait


def demand_bytes_per_s(users: Values, steps_per_s: Values, read_bytes_per_user: Values, miss_share: Values) -> Values:
    """Mean rate that decode asks of the tiers below HBM (mission row 42).

    `read_bytes_per_user` is what attention reads in one step for one user; `miss_share` the share of it not in HBM.
    """
    return users * steps_per_s * read_bytes_per_user * miss_share


def write_bytes_per_s(tokens_per_s: Values, bytes_per_token: Values, prefill_tokens_per_s: Values = 0.0) -> Values:
    """Traffic into the backing store: every new token is written once (mission row 7)."""
    return (tokens_per_s + prefill_tokens_per_s) * bytes_per_token


def drive_life_s(endurance_bytes: Values, write_rate_bytes_per_s: Values, write_amplification: Values = 1.0) -> Values:
    """Seconds until the drives' rated endurance is used up; infinite without writes (mission row 7)."""
    with np.errstate(divide="ignore"):
        life: Values = np.divide(endurance_bytes, np.multiply(write_rate_bytes_per_s, write_amplification))
    return life


def drive_writes_per_day(write_rate_bytes_per_s: Values, capacity_bytes: Values) -> Values:
    """Full-capacity writes a day, to compare with the drive's rating (JEDEC JESD218's DWPD)."""
    return write_rate_bytes_per_s * 86_400.0 / capacity_bytes


def note_effective_latency_s(shares: Sequence[Values], latencies_s: Sequence[Values]) -> Values:
    """Mean latency of one access, ``sum h_i t_i``: the note's formula, kept to re-derive its figures (note 000 part 15).

    It has no bytes, no bandwidth, no overlap and no queue, so it says nothing about the time of a step: use
    `kvpager.analysis.steptime`.
    """
    total: Values = 0.0
    for share, latency in zip(shares, latencies_s, strict=True):
        total = total + share * latency
    return total
