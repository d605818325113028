"""Private memory that is there from the start."""

from __future__ import annotations

import contextlib
import mmap

__all__ = ["private_memory"]


def private_memory(length: int) -> mmap.mmap:
    """Map `length` bytes of zeros for this process alone, on huge pages where the system gives them.

    Private, because shared mappings (Python's default) get no huge pages. Touch it before use: that is what brings it in.

    Raises
    ------
    OSError, OverflowError, ValueError
        If there is no such memory.
    """
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
