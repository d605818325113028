"""Kernels of the live cache on a CPU: attention of one step to blocks in slots, block scores, exact top-k."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvpager.live.kernels.decode import DecodeKernel
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
) -> DecodeKernel | PlainKernel | ReferenceKernel:
    """Choose the kernel of a layer: vector code where its shape allows, plain loops elsewhere on a CPU, else torch.

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
        Where the slots are; the compiled kernel is for ``"cpu"``.
    force : {"compiled", "reference"}, optional
        Take this one, for tests.

    Returns
    -------
    DecodeKernel, PlainKernel or ReferenceKernel
        Of the same contract.

    Raises
    ------
    BadInput
        The forced kernel does not take the shape.
    """
    kind: type[DecodeKernel | PlainKernel | ReferenceKernel]
    if force == "compiled" or (force is None and device == "cpu" and importlib.util.find_spec("numba") is not None):
        from kvpager.live.kernels.decode import DecodeKernel, supported
        from kvpager.live.kernels.plain import PlainKernel

        fits = force == "compiled" or supported(block_size, k_dim, v_dim, element, group)
        kind = DecodeKernel if fits else PlainKernel
    else:
        from kvpager.live.kernels.reference import ReferenceKernel

        kind = ReferenceKernel
    return kind(kv_heads=kv_heads, group=group, k_dim=k_dim, v_dim=v_dim, block_size=block_size, element=element)
