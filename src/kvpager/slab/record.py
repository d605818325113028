"""What is on disk, byte by byte: superblocks and record headers, and how their checksums are made.

A slab file is a superblock page and then places of equal size. A place holds one record::

    header page   magic, format, layer, key, generation, payload bytes, store identity, parts,
                  length of the tag, one checksum a part, the tag, and in its last 8 bytes the checksum of the page
    parts         [parts, part_bytes], then zeros up to the next page

A tag is what the store's owner wants to find again beside a record; it means nothing here.

A part's checksum is xxh3_64 seeded with (key, layer, generation, part): a right part in the wrong place is a wrong part.
All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from kvpager.errors import StoreError
from kvpager.slab.files import PAGE_BYTES

__all__ = [
    "FORMAT",
    "MOST_PARTS",
    "U64",
    "Headers",
    "Shape",
    "mixed",
    "read_headers",
    "read_superblock",
    "seeds_of",
    "superblock",
    "write_header",
]

FORMAT = 1
U64 = NDArray[np.uint64]

_SUPERBLOCK = b"kvpgSLAB"
_RECORD = b"kvpgRECD"
_FRAME = struct.Struct("<8sII")  # magic, format, length of what follows
_HEADER = np.dtype(
    [("magic", "S8"), ("format", "<u4"), ("layer", "<i4"), ("key", "<u8"), ("generation", "<u8"),
     ("payload_bytes", "<u8"), ("store", "<u8"), ("parts", "<u4"), ("tag_bytes", "<u4")]
)  # fmt: skip
_END = PAGE_BYTES - 8  # where a page's own checksum stands
_ZEROS = bytes(PAGE_BYTES)
MOST_PARTS = (_END - _HEADER.itemsize) // 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes two stores the same kind: all of it stands in every superblock.

    Parameters
    ----------
    parts, part_bytes : int
        A record's payload: `parts` pieces, one a KV head.
    layers : int
        Layers of a block.
    slab_bytes : int
        Bytes of a slab file.
    fingerprint : str
        Of the model and the layout that wrote the payload.
    tag_bytes : int
        Of each record's tag, a multiple of 8.
    """

    parts: int
    part_bytes: int
    layers: int
    slab_bytes: int
    fingerprint: str
    tag_bytes: int = 0

    def said(self) -> dict[str, int | str]:
        """Name and value of each field, as a superblock states them: a store without tags says nothing of them."""
        fields = asdict(self)
        if not self.tag_bytes:
            del fields["tag_bytes"]
        return fields

    @property
    def payload_bytes(self) -> int:
        """Bytes of a record's parts."""
        return self.parts * self.part_bytes

    @property
    def record_bytes(self) -> int:
        """Bytes of a place: header, parts, zeros up to the next page."""
        return PAGE_BYTES + -(-self.payload_bytes // PAGE_BYTES) * PAGE_BYTES

    @property
    def places(self) -> int:
        """Places of a slab."""
        return (self.slab_bytes - PAGE_BYTES) // self.record_bytes

    @property
    def identity(self) -> int:
        """The shape as one uint64."""
        return xxh3_64_intdigest(json.dumps([FORMAT, self.said()], sort_keys=True).encode())

    def check(self) -> None:
        """Raise `StoreError` if no store can have this shape."""
        if not 1 <= self.parts <= MOST_PARTS or self.part_bytes < 1 or self.layers < 1:
            raise StoreError(
                f"a store cannot hold records of {self.parts} parts of {self.part_bytes} bytes in {self.layers} layers: "
                f"give 1 to {MOST_PARTS} parts of at least 1 byte"
            )
        if self.slab_bytes % PAGE_BYTES or self.places < 1:
            raise StoreError(
                f"a slab of {self.slab_bytes} bytes cannot hold a record of {self.record_bytes}: give a multiple of "
                f"{PAGE_BYTES}, at least {self.record_bytes + PAGE_BYTES}"
            )
        if self.tag_bytes < 0 or self.tag_bytes % 8 or 8 * self.parts + self.tag_bytes > 8 * MOST_PARTS:
            raise StoreError(
                f"a tag of {self.tag_bytes} bytes does not fit beside {self.parts} checksums: give a multiple of 8, at most "
                f"{8 * (MOST_PARTS - self.parts)}"
            )
        if len(self.fingerprint.encode()) > 2048:
            raise StoreError(f"a fingerprint of {len(self.fingerprint)} characters is too long for a superblock: hash it")

    def place_offset(self, place: int) -> int:
        """Where in its slab file the place number `place` of the store begins."""
        return PAGE_BYTES + place % self.places * self.record_bytes


class Headers(NamedTuple):
    """What pages at the beginning of places say, one entry a page."""

    good: NDArray[np.bool_]
    """A header of this store with a right checksum."""
    damaged: NDArray[np.bool_]
    """Neither good nor empty."""
    key: U64
    layer: NDArray[np.int32]
    generation: U64
    checksums: U64
    """[pages, parts]"""
    tag: NDArray[np.uint8]
    """[pages, tag_bytes]"""


def superblock(shape: Shape, number: int) -> bytes:
    """Return the first page of slab `number`."""
    text = json.dumps({**shape.said(), "number": number}, sort_keys=True).encode()
    page = (_FRAME.pack(_SUPERBLOCK, FORMAT, len(text)) + text).ljust(_END, b"\0")
    return page + xxh3_64_intdigest(page).to_bytes(8, "little")


def read_superblock(page: bytes) -> tuple[Shape, int] | None:
    """Return the shape and the number that a superblock states; None if it is damaged.

    Raises
    ------
    StoreError
        For a sound superblock of another format version.
    """
    if len(page) != PAGE_BYTES or page[_END:] != xxh3_64_intdigest(page[:_END]).to_bytes(8, "little"):
        return None
    magic, version, length = _FRAME.unpack_from(page)
    if magic != _SUPERBLOCK:
        return None
    if version != FORMAT:
        raise StoreError(f"its format is {version}, this version of kvpager reads {FORMAT}: use another directory")
    fields = json.loads(page[_FRAME.size : _FRAME.size + length])
    number = fields.pop("number")
    return Shape(**fields), number


def write_header(
    page: memoryview, identity: int, key: int, layer: int, generation: int, sums: list[int], payload_bytes: int, tag: bytes
) -> None:
    """Fill the 4,096 bytes of `page` with a record's header; `sums` are its parts' checksums."""
    form = _header_form(len(sums))
    form.pack_into(page, 0, _RECORD, FORMAT, layer, key, generation, payload_bytes, identity, len(sums), len(tag), *sums)
    end = form.size + len(tag)
    page[form.size : end] = tag
    page[end:_END] = _ZEROS[end:_END]
    page[_END:] = xxh3_64_intdigest(page[:_END]).to_bytes(8, "little")


@cache
def _header_form(parts: int) -> struct.Struct:
    return struct.Struct(f"<8sIiQQQQII{parts}Q")


def read_headers(pages: NDArray[np.uint8], shape: Shape, identity: int) -> Headers:
    """Judge uint8 [n, 4096] `pages`, each the beginning of a place."""
    pages = np.ascontiguousarray(pages)
    fields = pages[:, : _HEADER.itemsize].copy().view(_HEADER)[:, 0]
    started = fields["magic"] == _RECORD
    good = started & (fields["store"] == identity) & (fields["format"] == FORMAT) & (fields["parts"] == shape.parts)
    good &= (fields["payload_bytes"] == shape.payload_bytes) & (fields["layer"] >= 0) & (fields["layer"] < shape.layers)
    good &= fields["tag_bytes"] == shape.tag_bytes
    ends = pages[:, _END:].copy().view("<u8")[:, 0]
    for row in np.flatnonzero(good).tolist():
        good[row] = xxh3_64_intdigest(pages[row, :_END].data) == int(ends[row])
    empty = ~started & ~good
    rest = np.flatnonzero(empty)
    empty[rest] = ~pages[rest].any(1)
    sums_end = _HEADER.itemsize + 8 * shape.parts
    sums = pages[:, _HEADER.itemsize : sums_end].copy().view("<u8")
    tag = pages[:, sums_end : sums_end + shape.tag_bytes].copy()
    return Headers(good, ~good & ~empty, fields["key"], fields["layer"], fields["generation"], sums, tag)


def seeds_of(keys: U64, layers: NDArray[np.int32], generations: U64) -> U64:
    """Return each record's seed: a mix of all that says which record it is. A part's seed is that plus the part's number."""
    return mixed(mixed(mixed(keys) + layers.astype(np.uint64)) + generations)


def mixed(values: U64) -> U64:
    """Scatter uint64 values over all uint64 (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
