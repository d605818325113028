"""What fitted constants of the placement score gain on recordings that they were not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput, InvariantError
from kvpager.replay.attention import warmup_steps
from kvpager.replay.constants import NOTES, NOTES_CUTS, Constants, Text, load_text
from kvpager.replay.fitting import BLOCK_STEPS, mean_interval
from kvpager.replay.row import Case, run_case

__all__ = ["GAINS", "check_apart", "held_out", "summary"]

GAINS = (
    ("scale of E", "notes", "notes, scaled"),
    ("weights", "notes, scaled", "weights"),
    ("alpha, half-life, sink zone", "weights", "fitted"),
    ("all of these", "notes", "fitted"),
    ("cuts", "fitted, notes' cuts", "fitted with cuts"),
    ("all, with cuts", "notes with cuts", "fitted with cuts"),
    ("filling HBM, beside the fitted cuts", "fitted with cuts", "fitted"),
    ("logistic fit, beside the sweep", "fitted", "logistic"),
    ("blend, beside the fitted score", "fitted", "blend"),
    ("Belady, beside the fitted score", "fitted", "belady"),
)
"""What is compared: name, from which row, to which row."""


def check_apart(train: Sequence[Path], test: Sequence[Path], horizon: int) -> None:
    """Refuse recordings that are given twice, whose text is to be both fitted and judged on, or that are too short.

    Raises
    ------
    BadInput
        The message names the recording.
    TraceError
        If one cannot be read.
    """
    from kvpager.traces.attention import read_recording

    paths: set[Path] = set()
    trained: dict[tuple[str, ...], Path] = {}
    for number, path in enumerate([*train, *test]):
        recording = read_recording(path)
        identity = (recording.header.model, recording.header.text, recording.header.tokens_sha256)
        if number >= len(train) and identity in trained:
            raise BadInput(
                f"test recording {str(path)!r} is of the same text as train recording {str(trained[identity])!r}: a fit is "
                "judged on texts that it has not seen; name another one"
            )
        if path.resolve() in paths:
            raise BadInput(f"recording {str(path)!r} is named twice: name it once")
        paths.add(path.resolve())
        if number < len(train):
            trained[identity] = path
        counted = recording.steps - warmup_steps(recording.steps)
        needed = max(2 * horizon, 2 * BLOCK_STEPS)
        if counted < needed:
            raise BadInput(
                f"recording {str(path)!r} has {recording.steps} steps, {counted} of them after the warm-up, but calibration with "
                f"a horizon of {horizon} steps needs {needed}: record {-(-needed * 4 // 3)} steps or more"
            )


def held_out(
    path: Path, steps: Mapping[str, Constants], *, selector: str, hbm_fraction: float, seed: int = 0
) -> list[dict[str, Any]]:
    """Replay the notes' constants, the fitted ones, the blend and Belady on a recording that no constant was fitted on.

    Parameters
    ----------
    path : Path
        The recording.
    steps : mapping of str to Constants
        What was fitted: ``weights``, ``fitted``, ``fitted with cuts``, ``logistic``.
    selector : str
        What counts as an access.
    hbm_fraction : float
        HBM's payload as a share of all KV.
    seed : int
        Of the ties.

    Returns
    -------
    list of dict
        One row a name, with policy, hits, moves and how full HBM and tier 0 are.

    Raises
    ------
    InvariantError
        If the Pager does not have exactly the hits of the compiled replay.
    """
    text = load_text(path, selector, hbm_fraction)
    tried: dict[str, Constants] = {
        "notes": NOTES,
        "notes with cuts": replace(NOTES, cuts=NOTES_CUTS),
        "notes, scaled": replace(NOTES, scale=steps["fitted"].scale),
        "fitted, notes' cuts": replace(steps["fitted"], cuts=NOTES_CUTS),
        **steps,
    }
    rows = _compiled(text, tried, seed)
    for name, policy in (("fitted", tried["fitted"].policy), ("blend", "blend"), ("belady", "belady")):
        paged = run_case(text.script.stream, Case(policy, hbm_fraction, bound=False, seed=seed))
        if name != "fitted":
            kept = ("policy", "block_hits", "block_hit_ratio", "moves_per_step")
            rows.append({"text": text.name, "name": name, **{key: paged[key] for key in kept}})
        elif paged["block_hits"] != (quick := next(row["block_hits"] for row in rows if row["name"] == name)):
            raise InvariantError(
                f"{policy} on {text.name!r} hits {quick} in the compiled replay, {paged['block_hits']} in the Pager"
            )
    return rows


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``means`` by name and ``gains`` in points of block_hit_ratio, with Student's 95 % intervals over texts.

    Parameters
    ----------
    rows : sequence of mapping
        Of `held_out`, text after text.
    """
    names = list(dict.fromkeys(row["name"] for row in rows))
    ratios = {name: [row["block_hit_ratio"] for row in rows if row["name"] == name] for name in names}
    means = [{"name": name, **mean_interval(ratios[name])} for name in names]
    gains = []
    for what, first, second in GAINS:
        points = [100 * (b - a) for a, b in zip(ratios[first], ratios[second], strict=True)]
        gains.append({"what": what, "from": first, "to": second, "unit": "points", **mean_interval(points)})
    return {"means": means, "gains": gains}


def _compiled(text: Text, tried: Mapping[str, Constants], seed: int) -> list[dict[str, Any]]:
    """One row a name, in the order of `tried`; each EMA is followed once."""
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted(tried, key=lambda name: (tried[name].scale, tried[name].alpha)):
        found = text.replay(tried[name], seed)
        hits, moves, held, pinned = (part[text.warmup :] for part in found)
        rows[name] = {
            "text": text.name, "name": name, "policy": tried[name].policy, "block_hits": int(hits.sum()),
            "block_hit_ratio": float(hits.sum() / text.accesses.sum()), "moves_per_step": float(moves.mean()),
            "hbm_used": float(held.mean() / text.units), "tier0_share": float(pinned.mean() / text.units),
        }  # fmt: skip
    return [rows[name] for name in tried]
