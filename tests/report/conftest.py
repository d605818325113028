"""A hand-made document with every section, plausible but made up: no figure in it is a result."""

import copy

import numpy as np
import pytest

from kvpager.analysis.heads import classify
from kvpager.analysis.locality import profile
from kvpager.testing.recordings import synthetic_recording

HITS = {"global": (0.0, 0.018, 0.411, 0.453, 0.451), "equal": (0.273, 0.234, 0.335, 0.346, 0.343)}
BOUNDS = {"global": (0.55, 0.47, 0.47, 0.52, 0.53), "equal": (0.41, 0.36, 0.36, 0.37, 0.37)}
MASS = {"global": (0.222, 0.504, 0.87, 0.88, 0.88), "equal": (0.61, 0.66, 0.85, 0.86, 0.86)}
NAMES = ("lru", "sink", "ema", "per_head", "prefetch")
LABELS = ("LRU", "+ sink pin (100 tokens)", "+ EMA α 0.2", "+ per KV head", "+ RoPE/EMA prefetch")
SIZES = (0.01, 0.02, 0.054, 0.0684, 0.1, 0.25, 0.5)
LIMITS = {"lru": 0.75, "lfu": 0.9, "ema": 0.93, "blend": 0.96, "s3fifo": 0.85, "sink_recent": 0.7, "random": 0.5, "belady": 1.0}

FACTORS = {
    "shapley": {"sink": -0.021, "ema": 0.31, "per_head": 0.042, "prefetch": 0.0},
    "leave_one_out": {"sink": -0.034, "ema": 0.42, "per_head": 0.05, "prefetch": -0.002},
}

DEFINITIONS = {
    "every block (dense)": ("every block", 0.068),
    "position, any head": ("a position that any head's set holds", 0.07),
    "top 99 %": ("in the head's top-99 % mass set", 0.28),
    "top 95 %": ("in the head's top-95 % mass set", 0.45),
    "above uniform": ("mass above 1/blocks", 0.61),
}


def row(policy, label, pool, size, hits, mass, bound, **more):
    """One replay row with every field of the contract."""
    same = ("byte_hit_ratio", "demand_only_hit_ratio", "block_hit_ratio")
    return {
        "policy": policy,
        "label": label,
        "pool": pool,
        "granularity": "head",
        "hbm_fraction": size,
        "capacity_units": int(size * 45720),
        "units": 45720,
        "selector": "topp_mass",
        "access": "block in its KV head's top-95 % mass set; open block not counted",
        "clock": "layer",
        "observe": "read",
        "warmup_steps": 64,
        "steps": 128,
        "accesses": 600_000,
        "block_hits": int(hits * 600_000),
        **dict.fromkeys(same, hits),
        "mass_hit_ratio": mass,
        "step_hit_ratio": hits / 3,
        "read_mass": 0.958,
        "p5_head_mass": mass * 0.8,
        "moves_per_step": 120.0,
        "fetched_units_per_step": 2600 * (1 - hits),
        "fetched_bytes_per_step": 4.2e6 * (1 - hits),
        "staging_fraction": 0.03,
        "metadata_fraction": 0.011,
        "bound": bound,
        "bound_kind": "belady",
        "dense_bound": size,
        "top_mass_oracle": min(1, mass + 0.03),
        "evidence": "simulated",
        "labels": ["simulated", "measured"],
        **more,
    }


def ladder(pool, size, scale=1.0):
    """Five rungs, scaled."""
    figures = zip(NAMES, LABELS, HITS[pool], MASS[pool], BOUNDS[pool], strict=True)
    rungs = [row(n, text, pool, size, h * scale, min(1, m * scale), min(1, b * scale), name=n) for n, text, h, m, b in figures]
    return {"hbm_fraction": size, "pool": pool, "rungs": rungs}


def curve(policy, pool, size):
    """A rising curve, lower for pools that share less."""
    reach = 8 * size * LIMITS[policy] * {"global": 1.2, "layer": 1.0, "equal": 0.8}[pool]
    hits = float(1 - np.exp(-reach))
    return row(policy, policy, pool, size, hits, hits + 0.3 * (1 - hits), min(1.0, hits + 0.1))


def whole_ladder():
    """The main ladder with its other sizes and pools, and references."""
    others = [
        ladder(pool, size, scale) for pool in ("global", "equal") for size, scale in ((0.054, 0.9), (0.1, 1.4), (0.25, 1.8))
    ]
    hits = {"lfu": 0.46, "random": 0.07, "blend": 0.5, "belady": 0.55}
    references = [row(policy, policy, "global", 0.0684, h, 0.8, 0.55) for policy, h in hits.items()]
    subsets = [{"hbm_fraction": 0.0684, "pool": pool, **FACTORS} for pool in ("global", "equal")]
    return {
        **ladder("global", 0.0684),
        "subsets": subsets,
        "others": [*others, ladder("equal", 0.0684)],
        "references": references,
    }


def definitions():
    """From dense to mass."""
    about = {"hbm_fraction": 0.0684, "pool": "global", "policy": "ema"}
    rows = [{"name": n, "access": a, "value": v, "block_hit_ratio": v, **about} for n, (a, v) in DEFINITIONS.items()]
    return [
        *rows,
        {"name": "attention mass", "access": "a unit of attention mass", "value": 0.87, "mass_hit_ratio": 0.87, **about},
    ]


def trace(recording):
    """Provenance, with text that a careless page would run."""
    return {
        "path": "run/demo.zarr",
        "model": "SmolLM2-135M-Instruct",
        "text": "<script>alert(1)</script> & argparse.py",
        "mode": "forced",
        "context_tokens": 4000,
        "steps": recording.steps,
        "blocks": recording.blocks,
        "block_size": 16,
        "layers": 6,
        "kv_heads": 3,
        "q_heads": 9,
        "fold": "mean",
        "tokens_sha256": "ab" * 32,
        "weights_sha256": "cd" * 32,
        "kv_bytes": recording.kv_bytes,
        "recorded": "2026-11-29T12:00:00Z",
    }


@pytest.fixture(scope="session")
def example():
    """The document itself: not to be changed."""
    recording = synthetic_recording(num_layers=6, num_kv_heads=3, group=3, context_tokens=4000, steps=48, seed=4)
    mass = recording.mass[:, 2, 1].astype(float)
    return {
        "kvpager": "0.1.0",
        "command": "kvpager demo --quick --out run",
        "evidence": "simulated",
        "seed": 0,
        "machine": {"cpu": "an example processor", "cores": 2, "memory_bytes": 8 << 30},
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "trace": trace(recording),
        "ladder": whole_ladder(),
        "curves": [curve(policy, pool, size) for policy in LIMITS for pool in ("global", "layer", "equal") for size in SIZES],
        "access_definitions": definitions(),
        "bounds": {"dense": 0.0684, "belady": 0.55},
        "locality": profile(recording),
        "head_types": classify(recording),
        "heatmap": {
            "layer": 2,
            "kv_head": 1,
            "steps": [0, 47],
            "policy": "ema",
            "pool": "global",
            "hbm_fraction": 0.0684,
            "mass": mass.round(4).tolist(),
            "resident": (mass > np.quantile(mass, 0.9)).astype(int).tolist(),
        },
        "claims": [],
    }


@pytest.fixture
def document(example):
    """A demo document that a test may change."""
    return copy.deepcopy(example)
