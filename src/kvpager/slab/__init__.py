"""The backing store on disk: preallocated slab files of checked records.

A *record* is one block in one layer: a header page and one part for each KV head. `SlabStore` is the door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvpager.slab.store import SlabStore as SlabStore


def __getattr__(name: str) -> Any:
    """Import the store when it is asked for: `space` alone is wanted where xxhash is not installed."""
    if name == "SlabStore":
        from kvpager.slab.store import SlabStore

        return SlabStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
