"""Reading what is really on disk: all headers, to rebuild the table; all records, to verify them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.slab.files import PAGE_BYTES, aligned, read_fully
from kvpager.slab.record import read_headers, seeds_of
from kvpager.slab.table import Records
from kvpager.slab.transfer import Disk

__all__ = ["Damage", "Scan", "scan", "verify"]

_STRIDE_BYTES = 4 << 20
_SMALL_RECORD_BYTES = 128 << 10


class Damage(NamedTuple):
    """One thing on disk that is not as it was written."""

    where: str
    """The file, and the place in it."""
    what: str
    """superblock, slab, header, part or missing."""
    key: int
    """Of the record; 0 if unknown."""
    layer: int
    """Of the record; -1 if unknown."""
    place: int = -1
    """Of the record, in the store; -1 if unknown."""


class Scan(NamedTuple):
    """What the headers say."""

    records: Records
    """All that are good, of all generations."""
    damaged: NDArray[np.int64]
    """Places with a header that is neither good nor empty."""


def scan(disk: Disk) -> Scan:
    """Read every header of every open slab."""
    with ThreadPoolExecutor(disk.threads) as pool:
        found = list(pool.map(lambda slab: _scan_slab(disk, slab), sorted(disk.fds)))
    columns = [np.concatenate(column) for column in zip(*(records for records, _ in found), strict=True)]
    return Scan(Records(*columns), np.concatenate([damaged for _, damaged in found]))


def _scan_slab(disk: Disk, slab: int) -> tuple[Records, NDArray[np.int64]]:
    shape = disk.shape
    small = shape.record_bytes <= _SMALL_RECORD_BYTES
    group = min(max(_STRIDE_BYTES // shape.record_bytes, 1), shape.places) if small else 1
    room = aligned(group * shape.record_bytes if small else PAGE_BYTES)
    goods: list[Records] = []
    damaged: list[NDArray[np.int64]] = []
    for slot in range(0, shape.places, group):
        count = min(group, shape.places - slot)
        length = count * shape.record_bytes if small else PAGE_BYTES
        room[:length] = 0  # what the file does not reach is empty
        read_fully(disk.files, disk.fds[slab], [room.data[:length]], shape.place_offset(slot))
        pages = room[:length].reshape(count, -1)[:, :PAGE_BYTES]
        headers = read_headers(pages, shape, disk.identity)
        places = slab * shape.places + slot + np.arange(count)
        columns = Records(headers.key, headers.layer, places, headers.generation, headers.checksums, headers.tag)
        goods.append(columns.some(headers.good))
        damaged.append(places[headers.damaged])
    return Records(*(np.concatenate(column) for column in zip(*goods, strict=True))), np.concatenate(damaged)


def verify(disk: Disk, records: Records, where_of: Callable[[int], str]) -> list[Damage]:
    """Read `records` whole, header and parts; return what is wrong with them. `where_of` words a place."""
    with ThreadPoolExecutor(disk.threads) as pool:
        shares = [records.some(np.arange(first, len(records.key), disk.threads)) for first in range(disk.threads)]
        found = list(pool.map(lambda share: _verify(disk, share, where_of), shares))
    return sorted((damage for share in found for damage in share), key=lambda damage: damage.place)


def _verify(disk: Disk, records: Records, where_of: Callable[[int], str]) -> list[Damage]:
    shape = disk.shape
    found = []
    room = aligned(shape.record_bytes)
    seeds = seeds_of(records.key, records.layer, records.generation)
    for number, place in enumerate(records.place.tolist()):
        key, layer = int(records.key[number]), int(records.layer[number])
        slab, where = place // shape.places, where_of(place)
        room[:] = 0
        try:
            read_fully(disk.files, disk.fds[slab], [room.data], shape.place_offset(place))
        except OSError as error:
            found.append(Damage(where, f"cannot be read ({error.strerror})", key, layer, place))
            continue
        header = read_headers(room[None, :PAGE_BYTES], shape, disk.identity)
        said = (
            int(header.key[0]),
            int(header.layer[0]),
            int(header.generation[0]),
            header.checksums[0].tolist(),
            header.tag[0].tolist(),
        )
        true = (
            key, layer, int(records.generation[number]), records.checksums[number].tolist(), records.tag[number].tolist()
        )  # fmt: skip
        if not header.good[0] or said != true:
            found.append(Damage(where, "header", key, layer, place))
        seed = int(seeds[number])
        payload = room.data[PAGE_BYTES : PAGE_BYTES + shape.payload_bytes]
        for part, checksum in enumerate(true[3]):
            bytes_of_part = payload[part * shape.part_bytes : (part + 1) * shape.part_bytes]
            if xxh3_64_intdigest(bytes_of_part, (seed + part) % 2**64) != checksum:
                found.append(Damage(where, f"part {part}", key, layer, place))
    return found
