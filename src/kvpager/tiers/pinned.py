"""Host memory that a GPU reads and writes by itself: tier 2 beside a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kvpager.errors import CapacityError
from kvpager.tiers.arena import Arena

__all__ = ["PinnedArena"]


class PinnedArena(Arena):
    """A host arena that a GPU reads and writes by itself, across the bus.

    Parameters
    ----------
    slots, slot_bytes : int
        As for `Arena`.
    device : torch.device
        Which GPU.

    Attributes
    ----------
    mapped : uint8 Tensor [slots, slot_bytes]
        The same memory, as the GPU sees it.

    Raises
    ------
    CapacityError
        If the system pins no such amount.
    """

    def __init__(self, slots: int, slot_bytes: int, device: torch.device) -> None:
        super().__init__(slots, slot_bytes)
        pointer, length = self.memory.ctypes.data, self.memory.nbytes
        failed = int(_runtime().cudaHostRegister(pointer, length, 0))
        if failed:
            super().close()
            raise CapacityError(
                f"the system does not pin {length:,} bytes of host memory for {device} (CUDA error {failed}): give DRAM less, "
                "or raise the limit of locked memory (ulimit -l)"
            )
        self.mapped: Tensor = torch.as_tensor(_Window(pointer, (slots, slot_bytes)), device=device)

    def close(self) -> None:
        """Give the memory back to the system."""
        if len(self.memory):
            _runtime().cudaHostUnregister(self.memory.ctypes.data)
        self.mapped = self.mapped[:0]
        super().close()


class _Window:
    """Pinned host memory, described as CUDA's array interface describes memory that a GPU can reach."""

    def __init__(self, pointer: int, shape: tuple[int, int]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (pointer, False), "version": 3}


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
