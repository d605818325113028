"""Prefetchers: what to bring before it is asked for; one file each. See `base` for the contract."""

from kvpager.prefetch.base import PREFETCHERS, Prefetcher

__all__ = ["PREFETCHERS", "Prefetcher"]
