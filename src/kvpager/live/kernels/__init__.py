"""Kernels of the live cache: attention of one step to blocks in slots, block scores, exact top-k."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvpager.live.kernels.decode import DecodeKernel
    from kvpager.live.kernels.device import DeviceKernel
    from kvpager.live.kernels.plain import PlainKernel
    from kvpager.live.kernels.reference import ReferenceKernel

__all__ = ["kernel_for"]


def kernel_for(
    *,
    kv_heads: int,
    group: int,
    k_dim: int,
    v_dim: int,
    block_size: int,
    element: str,
    device: str = "cpu",
    force: Literal["compiled", "reference"] | None = None,
) -> DecodeKernel | PlainKernel | DeviceKernel | ReferenceKernel:
    """Choose the kernel of a layer: on a CPU vector code where its shape allows, else plain loops; on a GPU Triton; else torch.

    Parameters
    ----------
    kv_heads : int
        KV heads of the layer.
    group : int
        Query heads a KV head.
    k_dim, v_dim : int
        Elements of a key and of a value.
    block_size : int
        Tokens of a block.
    element : str
        ``"float32"`` or ``"bfloat16"``.
    device : str
        Where the slots are.
    force : {"compiled", "reference"}, optional
        Take this one, for tests.

    Returns
    -------
    DecodeKernel, PlainKernel, DeviceKernel or ReferenceKernel
        Of the same contract.

    Raises
    ------
    BadInput
        The forced kernel does not take the shape.
    """
    shape = {"kv_heads": kv_heads, "group": group, "k_dim": k_dim, "v_dim": v_dim, "block_size": block_size}
    if force == "compiled" or (force is None and device == "cpu" and _installed("numba")):
        from kvpager.live.kernels.decode import DecodeKernel, supported
        from kvpager.live.kernels.plain import PlainKernel

        fits = force == "compiled" or supported(block_size, k_dim, v_dim, element, group)
        return DecodeKernel(**shape, element=element) if fits else PlainKernel(**shape, element=element)
    if force is None and device != "cpu" and _installed("triton"):
        from kvpager.live.kernels.device import DeviceKernel

        return DeviceKernel(**shape, element=element, device=device)
    from kvpager.live.kernels.reference import ReferenceKernel

    return ReferenceKernel(**shape, element=element)


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
