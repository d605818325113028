"""Copies between pinned host memory and a GPU, where PyTorch finds one."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from kvpager.evidence import Quantity
from kvpager.hardware.disk import link_limit
from kvpager.hardware.samples import Samples

__all__ = ["Gpu", "find_gpu"]

SIZES = (4 << 10, 1 << 20, 16 << 20, 256 << 20)
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class Gpu:
    """The first GPU that PyTorch uses.

    Parameters
    ----------
    torch : module
        PyTorch, imported by `find_gpu`.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        properties = torch.cuda.get_device_properties(0)
        self.title = str(properties.name)
        self.memory_bytes = int(properties.total_memory)
        self.versions = f"torch {torch.__version__}, CUDA {torch.version.cuda or torch.version.hip}"
        self.limit = self._limit(properties)

    @staticmethod
    def _limit(properties: Any) -> Quantity | None:
        try:  # older releases of PyTorch do not tell
            place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        except AttributeError:
            return None
        return link_limit(Path("/sys/bus/pci/devices") / place)

    def measure(self, way: str, size_bytes: int, seconds: float) -> Samples:
        """Copy `size_bytes` for about `seconds`, each copy timed and waited for.

        Parameters
        ----------
        way : {"host to device", "device to host", "device to device"}
            From where to where; the host's memory is pinned.
        size_bytes : int
            Bytes of one copy.
        seconds : float
            How long.

        Returns
        -------
        Samples
            At least three repeats, one a copy.
        """
        torch = self._torch
        source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda" if way.startswith("device") else "cpu")
        target = torch.empty(size_bytes, dtype=torch.uint8, device="cuda" if way.endswith("device") else "cpu")
        source, target = (buffer if buffer.is_cuda else buffer.pin_memory() for buffer in (source, target))
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times: list[float] = []
        until = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < until:
            begin = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        ordered = sorted(times)
        spread = [ordered[len(ordered) // 20], statistics.median(ordered), ordered[-1 - len(ordered) // 20]]
        limit = None if way == "device to device" else self.limit
        return Samples(f"{self.title} {way}", size_bytes, 1, tuple(size_bytes / each for each in spread), spread[1], limit)


def find_gpu() -> Gpu | str:
    """Return the GPU, or in words why there is none to measure. PyTorch is imported only where a GPU's driver is present."""
    if not any(Path(file).exists() for file in _DEVICE_FILES):
        return "no GPU driver on this machine"
    try:
        import torch
    except ImportError:
        return "a GPU driver, but no PyTorch to copy with: install kvpager[record]"
    return Gpu(torch) if torch.cuda.is_available() else f"PyTorch {torch.__version__} sees no GPU"
