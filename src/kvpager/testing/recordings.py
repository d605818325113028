"""A made-up recording in memory, for tests that need an attention trace but no model.

It has the traits that decide between policies: a sink in block 0 for some heads, recency of a width of
its own for each head, and a few persistent blocks that drift. It is no evidence about any model. It
needs neither torch nor zarr.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import KVGeometry, LayerKV
from kvpager.traces.locality import SPLITS, locality_ranges
from kvpager.traces.recording import Header, Recording

__all__ = ["synthetic_recording"]

Floats = NDArray[np.float64]


def synthetic_recording(
    *,
    num_layers: int = 2,
    num_kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 8,
    block_size: int = 16,
    context_tokens: int = 512,
    steps: int = 32,
    prefill_queries: int = 8,
    drift: float = 0.05,
    seed: int = 0,
) -> Recording:
    """Make up a plausible recording, the same for the same arguments.

    Parameters
    ----------
    num_layers, num_kv_heads, group, head_dim : int
        Shape of the model; each KV head serves `group` query heads.
    block_size, context_tokens, steps : int
        Tokens of a block, prefilled tokens and decode steps.
    prefill_queries : int
        Recorded queries at the end of the prefill, at most `context_tokens`.
    drift : float
        Chance that a persistent block moves in a step, 0..1.
    seed : int
        Of the random generator.

    Returns
    -------
    Recording
        All arrays present; `mass` sums to 1 over the blocks but for float16 rounding.

    Examples
    --------
    >>> recording = synthetic_recording(context_tokens=160, steps=4)
    >>> recording.mass.shape
    (4, 2, 2, 11)
    """
    rng = np.random.default_rng(seed)
    first = context_tokens - prefill_queries + 1
    lengths = np.arange(first, context_tokens + steps + 1)
    mass = _mass(rng, (num_layers, num_kv_heads), lengths, block_size, drift)
    exists = np.arange(mass.shape[-1]) <= ((lengths - 1) // block_size)[:, None, None, None]
    with np.errstate(divide="ignore"):
        bound = np.log(mass) + 12 + np.abs(rng.normal(0, 1.0, mass.shape))
    bound = np.where(exists, np.maximum(bound, -20), -np.inf)
    locality = np.stack([_locality(row, int(n), block_size) for row, n in zip(mass, lengths, strict=True)])[prefill_queries:]
    special, relative, absolute = np.split(np.repeat(locality, group, axis=2).astype(np.float16), SPLITS, axis=-1)
    cosine = np.clip(rng.normal(0.8, 0.1, (steps, num_layers, num_kv_heads * group)), -1, 1)
    layer = LayerKV(num_kv_heads, head_dim, head_dim)
    geometry = KVGeometry("synthetic", "llama", num_kv_heads * group, 2, (layer,) * num_layers, context_tokens + steps)
    header = Header(
        model="synthetic", weights_sha256="0" * 64, geometry=geometry, layers=tuple(range(num_layers)),
        num_q_heads=num_kv_heads * group, num_kv_heads=num_kv_heads, block_size=block_size, context_tokens=context_tokens,
        mode="forced", fold="mean", text=f"synthetic, seed {seed}", tokens_sha256="0" * 64,
    )  # fmt: skip
    half = mass.astype(np.float16)
    return Recording(
        header, half[prefill_queries:], half[:prefill_queries], bound.astype(np.float16)[prefill_queries:],
        cosine.astype(np.float16), special, relative, absolute,
    )  # fmt: skip


def _mass(rng: np.random.Generator, heads: tuple[int, int], lengths: NDArray[np.int64], block_size: int, drift: float) -> Floats:
    """Mass of each query, [queries, layer, kv_head, block]: sink + recency + drifting blocks + a floor."""
    blocks = int(lengths[-1] - 1) // block_size + 1
    sink = np.where(rng.random((*heads, 1)) < 0.6, rng.uniform(0.1, 0.6, (*heads, 1)), 0.002)
    width = np.exp(rng.uniform(0, np.log(max(2, blocks / 6)), (*heads, 1)))
    spread = rng.uniform(0.1, 0.6, (*heads, 1))
    persistent = int(max(1, min(24, blocks // 4)))
    used = np.arange(persistent) < rng.integers(1, persistent + 1, (*heads, 1))
    where = rng.random((*heads, persistent))
    weight = rng.lognormal(0, 1.0, (*heads, persistent)) * used
    index = np.indices((*heads, persistent))
    out = np.zeros((len(lengths), *heads, blocks))
    for row, length in zip(out, lengths, strict=True):
        now = (int(length) - 1) // block_size + 1
        moved = rng.random(where.shape) < drift
        where = np.where(moved, rng.random(where.shape), where)
        weight = weight**0.95 * rng.lognormal(0, 0.25, where.shape) * used
        recency = np.exp(-(now - 1 - np.arange(now)) / width)
        far = np.full((*heads, now), 0.02 / now)
        np.add.at(far, (index[0], index[1], (where * now).astype(int)), weight / weight.sum(-1, keepdims=True))
        rest = (1 - spread) * recency / recency.sum(-1, keepdims=True) + spread * far / far.sum(-1, keepdims=True)
        row[..., :now] = (1 - sink) * rest
        row[..., 0] += sink[..., 0]
    return out


def _locality(mass: Floats, tokens: int, block_size: int) -> Floats:
    """Token-level mass of one step, [layer, kv_head, RANGES]: block 0's on its first token, the others' spread evenly."""
    blocks = (tokens - 1) // block_size + 1
    sizes = np.full(blocks, block_size)
    sizes[-1] = tokens - (blocks - 1) * block_size
    flat = np.repeat(mass[..., :blocks] / sizes, sizes, axis=-1)
    flat[..., 0] = mass[..., 0]
    flat[..., 1 : sizes[0]] = 0
    prefix = np.concatenate([np.zeros((*mass.shape[:-1], 1)), np.cumsum(flat, axis=-1)], axis=-1)
    start, stop = locality_ranges(tokens)
    out: Floats = prefix[..., stop] - prefix[..., start]
    return out
