"""Key summaries: what is kept of each block's keys to guess its score; one file each. See `base` for the contract."""

from kvpager.live.summaries.base import SUMMARIES, Summary

__all__ = ["SUMMARIES", "Summary"]
