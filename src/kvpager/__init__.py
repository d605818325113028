"""kvpager plans, proves and runs tiered KV caches for LLM inference.

Importing this package needs neither torch nor numba; extras are imported where they are used.
"""

from kvpager.core import KVGeometry
from kvpager.errors import KVPagerError
from kvpager.evidence import Evidence, Quantity

__version__ = "0.1.0"

__all__ = ["Evidence", "KVGeometry", "KVPagerError", "Quantity", "__version__"]
