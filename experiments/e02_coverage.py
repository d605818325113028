"""How much must be resident for 90, 97 and 99 % of the mass or of the accesses, and what would 5.4 % give.

Coverage: the smallest sets of blocks, per KV head, of dense recordings. Hits at 5.4 %: Belady and the recommended policy in one
global pool, which bounds what placement alone can do; what reading less costs in output is in the closed loop's experiment.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from experiments.study import Study, interval
from experiments.texts import TEST
from kvpager.analysis.heads import KINDS, kind_of
from kvpager.analysis.locality import blocks_needed, special_mass
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.errors import CapacityError
from kvpager.evidence import Evidence
from kvpager.replay.attention import warmup_steps
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep
from kvpager.traces.attention import read_recording
from kvpager.traces.recording import Recording

CLAIMS = ("hot-97-plausible", "head-retrieval-vs-97")
TARGETS = (0.88, 0.90, 0.97, 0.99)
NOTE, QUICK_SIZE = 0.054, 0.10


def run(study: Study) -> None:
    """Measure coverage and hits on the test texts."""
    texts = TEST[:4] if study.quick else TEST
    rows = [study.once(f"{text} at {NOTE}", partial(_text, study, text))[0] for text in texts]
    size = rows[0]["hbm_fraction"]
    bound = interval([100 * row["belady"] for row in rows])
    blend, most = interval([100 * row["blend"] for row in rows]), max(100 * row["belady"] for row in rows)
    free = interval([100 * row["blocks_for_0.97"] for row in rows])
    study.find(
        "hot-97-plausible",
        CONTRADICTED if bound.high < 97 else SUPPORTED if bound.low >= 97 else INCONCLUSIVE,
        f"with {100 * size:g} % of the KV in HBM not even Belady's choice hits more than {bound.value:.0f} % of the accesses to "
        f"each KV head's top-95 % mass set (at most {most:.0f} % on one of {len(rows)} texts, SmolLM2, one global pool), "
        f"the recommended policy {blend.value:.0f} %; "
        f"97 % of the mass needs {free.value:.0f} % of the blocks per KV head",
        value=bound.value, low=bound.low, high=bound.high, unit="%",
    )  # fmt: skip
    study.sign("97 % minus Belady's hits", interval([97 - 100 * row["belady"] for row in rows]))
    other = interval([100 * row["other_blocks_for_0.88"] for row in rows])
    study.find(
        "head-retrieval-vs-97",
        CONTRADICTED if other.low > 100 * NOTE else SUPPORTED if other.high <= 100 * NOTE else INCONCLUSIVE,
        f"KV heads that are neither recency nor anchor heads need {other.value:.0f} % of their blocks for the 88 % of their mass "
        "that the note's overall 97 % would ask of them: with 5.4 % they cannot reach it",
        value=other.value, low=other.low, high=other.high, unit="%", labels=(Evidence.MEASURED,),
    )  # fmt: skip
    study.sign(
        "blocks that other heads need for 88 % minus 5.4 %", interval([row["other_blocks_for_0.88"] - NOTE for row in rows])
    )


def _text(study: Study, text: str) -> list[dict[str, Any]]:
    path = study.recording(text)
    recording = read_recording(path)
    row = {"text": text, "context_tokens": recording.header.context_tokens} | _coverage(recording, warmup_steps(recording.steps))
    size = NOTE
    try:
        found = sweep(Source(path), [Case(policy, size, bound=False) for policy in ("belady", "blend")], jobs=1)
    except CapacityError:  # a short recording has too few blocks for so small a size
        size = QUICK_SIZE
        found = sweep(Source(path), [Case(policy, size, bound=False) for policy in ("belady", "blend")], jobs=1)
    return [row | {"hbm_fraction": size} | {one["policy"]: one["block_hit_ratio"] for one in found}]


def _coverage(recording: Recording, first_step: int) -> dict[str, float]:
    """Mean share of its blocks that a KV head needs, over steps and heads: all heads, and those of kind "other"."""
    header = recording.header
    special = special_mass(recording, first_step).mean(axis=0)
    kinds = kind_of(special.reshape(len(header.layers), header.num_kv_heads, -1, special.shape[-1]).mean(axis=2))
    other = kinds == KINDS.index("other")
    needed: dict[float, list[Any]] = {target: [] for target in TARGETS}
    for step in range(first_step, recording.steps):
        blocks = recording.open_block(step) + 1
        mass = recording.mass[step, ..., :blocks].astype(np.float64)
        for target in TARGETS:
            needed[target].append(blocks_needed(mass, target)[0] / blocks)
    means = {target: np.mean(counts, axis=0) for target, counts in needed.items()}
    row = {f"blocks_for_{target:.2f}": float(mean.mean()) for target, mean in means.items()}
    return row | {"other_heads": int(other.sum()), "other_blocks_for_0.88": float(means[0.88][other].mean())}
