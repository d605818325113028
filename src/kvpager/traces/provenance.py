"""Where a number was made: machine, versions, date. Nothing that identifies a person or a host."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["now", "this_machine", "versions_of"]


def this_machine() -> dict[str, Any]:
    """Return processor, usable cores, memory and system of this machine."""
    machine: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        machine["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, kvpager and those of `packages` that are installed."""
    from kvpager import __version__

    found = {"python": platform.python_version(), "kvpager": __version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def now() -> str:
    """Return date and time, UTC, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
