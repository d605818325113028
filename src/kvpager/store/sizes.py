"""In which places blocks of any size stand: whole pages, four sizes a doubling, so that little is wasted."""

from __future__ import annotations

from kvpager.slab.files import PAGE_BYTES

__all__ = ["MOST_BLOCK_BYTES", "place_bytes", "slab_bytes"]

MOST_BLOCK_BYTES = 64 << 20


def place_bytes(length: int) -> int:
    """Return the size of the places for blocks of `length` bytes: at most a fifth of it are pages that stay empty."""
    pages = max(1, -(-length // PAGE_BYTES))
    step = max(1, 1 << (pages - 1).bit_length() >> 3)
    return -(-pages // step) * step * PAGE_BYTES


def slab_bytes(size: int, about: int) -> int:
    """Return the length of a slab file with places for `size` bytes, `about` that many bytes but at least one place."""
    record = PAGE_BYTES + size
    return PAGE_BYTES + max(1, (about - PAGE_BYTES) // record) * record
