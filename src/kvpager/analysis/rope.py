"""Rotary position embedding: its frequencies, and how far distance alone bounds an inner product.

A head of dimension d is rotated in d/2 pairs; pair i turns by θ_i = base^(−2i/d) radians a position. By Abel
summation |⟨q, k⟩| at distance D is at most max|h_{i+1} − h_i| · Σ_j |S_j(D)|, where h_i is pair i's complex
product of query and key, h past the last pair is 0, and S_j(D) = Σ_{i<j} e^{iDθ_i}. The sum is the *envelope*.
It is content-free: the other factor scales with the content, so the envelope ranks nothing by itself. It does not
fall to zero, nor does it fall everywhere. Scaled variants (Llama 3.1, YaRN) change θ and are not covered here.

Source: Su et al., RoFormer, arXiv 2104.09864, §3.4.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvpager.errors import BadInput

__all__ = ["bound_over_product", "envelope", "frequencies", "frequency", "num_pairs", "relative_envelope", "wavelength_tokens"]

Floats = NDArray[np.float64]


def num_pairs(head_dim: ArrayLike) -> Floats:
    """How many pairs of dimensions are rotated: half the head dimension."""
    return np.asarray(head_dim, dtype=np.float64) / 2


def frequency(pair: ArrayLike, base: ArrayLike, head_dim: ArrayLike) -> Floats:
    """Radians a position by which one pair turns.

    Parameters
    ----------
    pair : array_like
        Index of the pair, from 0.
    base : array_like
        The config's ``rope_theta``, > 1.
    head_dim : array_like
        Head dimension d.

    Returns
    -------
    float64 array
        base^(−2·pair/d).
    """
    exponent = -2.0 * np.asarray(pair, dtype=np.float64) / np.asarray(head_dim, dtype=np.float64)
    return np.asarray(np.power(np.asarray(base, dtype=np.float64), exponent), dtype=np.float64)


def frequencies(base: float, head_dim: int) -> Floats:
    """All d/2 frequencies of a head, fastest first; raises `BadInput` for an odd or empty head dimension."""
    if head_dim <= 0 or head_dim % 2:
        raise BadInput(f"head dimension {head_dim} cannot be rotated in pairs: give a positive even number")
    return frequency(np.arange(head_dim // 2), base, head_dim)


def wavelength_tokens(pair: ArrayLike, base: ArrayLike, head_dim: ArrayLike) -> Floats:
    """Positions after which one pair has turned once: 2π ÷ its frequency."""
    return np.asarray(2 * np.pi / frequency(pair, base, head_dim), dtype=np.float64)


def envelope(distance: ArrayLike, base: float, head_dim: int) -> Floats:
    """Mean over j = 1 … d/2 of |S_j(D)|: the content-free part of the bound.

    Parameters
    ----------
    distance : array_like
        Positions between query and key, >= 0; any shape.
    base : float
        The config's ``rope_theta``.
    head_dim : int
        Head dimension d, even.

    Returns
    -------
    float64 array
        Same shape as `distance`; the value at distance 0 is (d/2 + 1)/2.
    """
    angle = np.asarray(distance, dtype=np.float64)[..., None] * frequencies(base, int(head_dim))
    return np.asarray(np.abs(np.cumsum(np.exp(1j * angle), axis=-1)).mean(axis=-1), dtype=np.float64)


def relative_envelope(distance: ArrayLike, base: float, head_dim: int) -> Floats:
    """Envelope at `distance` ÷ envelope at distance 0: 1 at no distance."""
    return envelope(distance, base, head_dim) / envelope(0.0, base, head_dim)


def bound_over_product(real: ArrayLike, imaginary: ArrayLike, distance: float, base: float) -> Floats:
    """How far the Abel bound lies above |⟨q, k⟩| for one content.

    Parameters
    ----------
    real, imaginary : array_like [pairs]
        h_i = q_i · conj(k_i) of each pair.
    distance : float
        Positions between query and key.
    base : float
        The config's ``rope_theta``.

    Returns
    -------
    float64 array
        Bound ÷ product, never below 1.
    """
    content = np.asarray(real, dtype=np.float64) + 1j * np.asarray(imaginary, dtype=np.float64)
    turns = np.exp(1j * distance * frequencies(base, 2 * content.size))
    steps = np.abs(np.diff(content, append=0.0))
    bound = steps.max() * np.abs(np.cumsum(turns)).sum()
    return np.asarray(bound / np.abs((content * turns).sum().real), dtype=np.float64)
