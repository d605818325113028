"""Selectors: which units a decode step reads; one file each. See `base` for the contract."""

from kvpager.selectors.base import SELECTORS, Selector, View

__all__ = ["SELECTORS", "Selector", "View"]
