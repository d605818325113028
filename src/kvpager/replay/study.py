"""What the report shows beside the ladder: curves over capacity, the definitions of access, one head's residency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvpager.core import Ids, Tick
from kvpager.policies import make_policy
from kvpager.replay.attention import Replay, capacity_units
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, load_stream, sweep

__all__ = ["CURVE_POLICIES", "CURVE_SIZES", "DEFINITIONS", "access_definitions", "curves", "heatmap"]

CURVE_SIZES = (0.03, 0.054, 0.10, 0.25, 0.50)
CURVE_POLICIES = ("random", "lru", "lfu", "sink-recent", "ema", "blend", "belady")

DEFINITIONS = (
    ("every block read (dense attention)", "dense"),
    ("top-99 % mass set of the KV head", "topp_mass:p=0.99"),
    ("top-95 % mass set of the KV head", "topp_mass:p=0.95"),
    ("top-90 % mass set of the KV head", "topp_mass:p=0.9"),
    ("more than 1/blocks of the mass", "mass_above_uniform"),
)
"""Name and selector: what counts as an access."""


def curves(
    source: Source,
    *,
    sizes: Sequence[float] = CURVE_SIZES,
    policies: Sequence[str] = CURVE_POLICIES,
    pools: Sequence[str] = ("global", "layer", "equal"),
    seed: int = 0,
    jobs: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Replay `policies` at all `sizes` and `pools`; Belady is one of them and bounds the others.

    Returns
    -------
    list of dict
        One row a case; sizes that a pool cannot hold its open units in are left out.
    """
    fitting = [size for size in sizes if size * load_stream(source).recording.blocks >= 2]
    cases = [Case(policy, size, pool, bound=False, seed=seed) for pool in pools for size in fitting for policy in policies]
    return sweep(source, cases, jobs=jobs, progress=progress)


def access_definitions(
    source: Source, *, hbm_fraction: float, policy: str = "ema", pool: str = "equal", seed: int = 0
) -> list[dict[str, Any]]:
    """Replay one policy at one size under each definition of access: the same recording, very different ratios.

    Returns
    -------
    list of dict
        ``name``, ``access``, ``value``, and what was replayed; last the mass that is resident, which is no block count.
    """
    entries = []
    case = Case(policy, hbm_fraction, pool, bound=False, seed=seed)
    for name, selector in DEFINITIONS:
        row = sweep(replace(source, selector=selector), [case], jobs=1)[0]
        entries.append(_definition(name, "block_hit_ratio", row))
        if selector == "topp_mass:p=0.95":
            mass = _definition("attention mass resident (no block count)", "mass_hit_ratio", row)
    return [*entries, mass]


def _definition(name: str, metric: str, row: dict[str, Any]) -> dict[str, Any]:
    keys = ("access", "policy", "pool", "hbm_fraction", "evidence", "labels")
    return {"name": name, "metric": metric, "value": row[metric], **{key: row[key] for key in keys}}


def heatmap(source: Source, *, hbm_fraction: float, policy: str = "blend", pool: str = "global", seed: int = 0) -> dict[str, Any]:
    """Block by step for one KV head: its attention mass, and what was resident when each step was judged.

    The head is the one with the most mass outside the first block and the newest 13 (about 200 tokens):
    the one for which recency and sinks explain least.

    Returns
    -------
    dict
        ``layer`` (of the model), ``kv_head``, ``steps``, ``mass`` and ``resident`` ``[step][block]``.
    """
    stream = load_stream(source)
    recording = stream.recording
    middle = recording.mass[:, :, :, 1 : max(recording.open_block(0) - 12, 2)].astype(np.float32).sum(axis=(0, 3))
    layer, head = (int(i) for i in np.unravel_index(middle.argmax(), middle.shape))
    replay = Replay(stream, make_policy(policy), capacity_units(stream, hbm_fraction, pool), pool=pool, seed=seed)
    resident = np.zeros((recording.steps, recording.blocks), np.int8)
    width = replay.table.heads_per_layer

    def look(tick: Tick) -> None:
        if tick.layer in (layer, -1):
            units: Ids = replay.table.of_layer(layer)[head::width]
            resident[tick.step, : len(units)] = replay.pager.resident(units)

    replay.run(look)
    return {
        "layer": recording.header.layers[layer],
        "kv_head": head,
        "steps": [0, recording.steps - 1],
        "policy": policy,
        "pool": pool,
        "hbm_fraction": hbm_fraction,
        "mass": recording.mass[:, layer, head].astype(float).round(4).tolist(),
        "resident": resident.tolist(),
        "evidence": "simulated",
    }
