"""Layers that keep a state of constant size: what linear attention and Mamba cost per sequence.

Not a family: the families that mix such layers with attention share these formulas. Source: reference of the field
as of 2026 (the shapes that vLLM's ``mamba_utils`` allocates): a convolution of kernel k keeps its last k - 1 inputs.
"""

from __future__ import annotations

from kvpager.core import LayerKV
from kvpager.models.base import DTYPE_BYTES, ConfigReader, refused

__all__ = ["gated_delta_layer", "mamba1_layer", "mamba2_layer"]


def gated_delta_layer(
    config: ConfigReader, *, kernel: int, key: tuple[int, int], value: tuple[int, int], state_dtype: str
) -> LayerKV:
    """Return a layer of gated delta rule attention (GDN, KDA).

    Parameters
    ----------
    config : ConfigReader
        For dtypes and complaints.
    kernel : int
        Width of the convolution.
    key, value : tuple of int
        Heads and elements of a head. Queries have the keys' shape.
    state_dtype : str
        Dtype of the recurrent state, unless the caller of `geometry_of` chose one.
    """
    (key_heads, key_dim), (value_heads, value_dim) = key, value
    inputs = 2 * key_heads * key_dim + value_heads * value_dim
    return _layer(config, kernel, inputs, value_heads * key_dim * value_dim, state_dtype, value_heads)


def mamba2_layer(
    config: ConfigReader, *, kernel: int, heads: int, head_dim: int, groups: int, state: int, state_dtype: str
) -> LayerKV:
    """Return a Mamba-2 layer: convolution over heads x head_dim + 2 x groups x state channels, one state a channel."""
    inner = heads * head_dim
    return _layer(config, kernel, inner + 2 * groups * state, inner * state, state_dtype, heads)


def mamba1_layer(config: ConfigReader, *, kernel: int, inner: int, state: int, state_dtype: str) -> LayerKV:
    """Return a Mamba-1 layer: `inner` channels through the convolution, `state` numbers for each."""
    return _layer(config, kernel, inner, inner * state, state_dtype, inner)


def _layer(config: ConfigReader, kernel: int, inputs: int, states: int, state_dtype: str, cuts: int) -> LayerKV:
    recurrent = config.state_dtype_bytes or DTYPE_BYTES.get(str(state_dtype))
    if recurrent is None:
        raise refused(config.name, f"its recurrent state has the dtype {state_dtype!r}, none of {', '.join(DTYPE_BYTES)}")
    return LayerKV(0, 0, 0, state_bytes=(kernel - 1) * inputs * config.dtype_bytes + states * recurrent, state_heads=cuts)
