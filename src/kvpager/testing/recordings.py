"""Made-up recordings in memory, for tests that need an attention trace but no model.

The synthetic one has the traits that decide between policies: a sink in block 0 for some heads, recency of a width of
its own for each head, and a few persistent blocks that drift. A planted one has a single signal that
tells what is read next. Neither is evidence about any model. They need neither torch nor zarr.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvpager.core import KVGeometry, LayerKV
from kvpager.errors import BadInput
from kvpager.traces.locality import SPLITS, locality_ranges
from kvpager.traces.recording import Header, Recording

__all__ = ["SIGNALS", "planted_recording", "synthetic_recording"]

Floats = NDArray[np.float64]

SIGNALS = ("recency", "mass", "sink")
"""What a planted recording can be told by."""


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
    return _complete(
        rng, mass, lengths, prefill_queries, group=group, head_dim=head_dim, block_size=block_size, text=f"synthetic, seed {seed}"
    )


def planted_recording(
    signal: str, *, num_layers: int = 2, num_kv_heads: int = 2, context_tokens: int = 1280, steps: int = 64, seed: int = 0
) -> Recording:
    """Make up a recording in which one signal tells what is read next, and the others mislead.

    Parameters
    ----------
    signal : {"recency", "mass", "sink"}
        ``recency``: a working set that is replaced now and then, beside blocks of large mass that do not come back. ``mass``:
        some blocks draw much mass again and again, beside many that are read once. ``sink``: the first 100 tokens draw a little
        mass again and again, beside many blocks of larger mass that are read once.
    num_layers, num_kv_heads : int
        Shape of the model.
    context_tokens, steps : int
        Prefilled tokens and decode steps.
    seed : int
        Of the random generator.

    Returns
    -------
    Recording
        What is read lies within the top-95 % mass set of its head.

    Raises
    ------
    BadInput
        For an unknown signal.
    """
    if signal not in SIGNALS:
        raise BadInput(f"unknown signal {signal!r}: choose among {', '.join(SIGNALS)}")
    rng = np.random.default_rng(seed)
    block_size, queries = 16, 4
    lengths = np.arange(context_tokens - queries + 1, context_tokens + steps + 1)
    old = context_tokens // block_size - 1
    mass = np.zeros((len(lengths), num_layers, num_kv_heads, int(lengths[-1] - 1) // block_size + 1))
    for layer, head in np.ndindex(num_layers, num_kv_heads):
        working = rng.choice(old, 10, replace=False)
        for query, length in enumerate(lengths):
            row = mass[query, layer, head]
            if signal == "recency":
                if query % 10 == 9:
                    working = rng.choice(old, 10, replace=False)
                row[rng.choice(old)] += 5
                row[working[rng.random(10) < 0.6]] += 1
            elif signal == "mass":
                row[working[rng.random(10) < 0.4]] += 3
                row[rng.choice(old, 6, replace=False)] += 1
            else:
                row[:7][rng.random(7) < 0.6] += 1
                row[7 + rng.choice(old - 7, 6, replace=False)] += 3
            row *= 0.97 / row.sum()
            row[(length - 1) // block_size] += 0.03
    return _complete(
        rng, mass, lengths, queries, group=1, head_dim=8, block_size=block_size, text=f"planted {signal}, seed {seed}"
    )


def _complete(
    rng: np.random.Generator, mass: Floats, lengths: NDArray[np.int64], prefill_queries: int, *, group: int, head_dim: int,
    block_size: int, text: str,
) -> Recording:  # fmt: skip
    """Make a recording of `mass`, [queries, layer, kv_head, block], with all its other arrays."""
    num_layers, num_kv_heads = mass.shape[1:3]
    steps, context_tokens = len(lengths) - prefill_queries, int(lengths[prefill_queries]) - 1
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
        mode="forced", fold="mean", text=text, tokens_sha256="0" * 64,
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
