"""How much memory is free, so that what would not fit is refused before the machine begins to swap."""

from __future__ import annotations

import os
from pathlib import Path

from kvpager.errors import CapacityError
from kvpager.units import format_bytes

__all__ = ["check_room", "free_memory_bytes"]

_GROUP = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Bytes that this process can still take without swapping: what the system has available, and its group may use.

    Where the system does not tell what is available, its whole memory counts.
    """
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        most, used = ((_GROUP / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return free if most == "max" else min(free, max(0, int(most) - int(used)))
    except OSError:
        return free


def check_room(needed_bytes: int, what: str) -> None:
    """Raise `CapacityError` if `what` needs more memory than is free.

    Parameters
    ----------
    needed_bytes : int
        Bytes that it will take on top of what is taken now.
    what : str
        Its name in the message.
    """
    free = free_memory_bytes()
    if needed_bytes > free:
        raise CapacityError(
            f"{what} needs {format_bytes(needed_bytes)} of memory, and {format_bytes(free)} are free: "
            "read it piece by piece (iter_requests), or free memory"
        )
