"""kvpager plans, proves and runs tiered KV caches for LLM inference.

Importing this package needs neither torch nor numba; extras are imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvpager.errors import KVPagerError
from kvpager.evidence import Evidence, Quantity

if TYPE_CHECKING:
    from kvpager.core import KVGeometry

__version__ = "0.1.0"

__all__ = ["Evidence", "KVGeometry", "KVPagerError", "Quantity", "__version__"]


def __getattr__(name: str) -> type[KVGeometry]:
    """Import `KVGeometry` when it is used: its module needs numpy, which ``kvpager --help`` should not wait for."""
    if name != "KVGeometry":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvpager.core import KVGeometry

    return KVGeometry
