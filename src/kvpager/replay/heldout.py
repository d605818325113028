"""What fitted constants of the placement score gain on recordings that they were not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput, InvariantError
from kvpager.replay.attention import warmup_steps
from kvpager.replay.constants import NOTES, NOTES_CUTS, Constants, Progress, Text, load_text
from kvpager.replay.fitting import BLOCK_STEPS, mean_interval
from kvpager.replay.provenance import describe_recording
from kvpager.replay.row import Case, run_case

__all__ = ["GAINS", "check_apart", "held_out"]

GAINS = (
    ("scale of E", "notes", "notes, scaled"),
    ("weights", "notes, scaled", "weights"),
    ("alpha, half-life, sink zone", "weights", "fitted"),
    ("all of these", "notes", "fitted"),
    ("all, both with cuts", "notes with cuts", "fitted with cuts"),
    ("cuts, beside filling HBM by rank", "fitted", "fitted with cuts"),
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
    paths: Sequence[Path], steps: Mapping[str, Constants], *, selector: str, hbm_fraction: float, seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Replay the notes' constants, the fitted ones, the blend and Belady on recordings that no constant was fitted on.

    Parameters
    ----------
    paths : sequence of Path
        Recordings.
    steps : mapping of str to Constants
        What was fitted: ``weights``, ``fitted``, ``fitted with cuts``, ``logistic``.
    selector : str
        What counts as an access.
    hbm_fraction : float
        HBM's payload as a share of all KV.
    seed : int
        Of the ties.
    progress : callable, optional
        Told (done, total, what).

    Returns
    -------
    dict
        ``texts``, ``rows`` (one a text and name), ``means`` by name, and ``gains`` in points of block_hit_ratio, with
        Student's 95 % interval over texts.

    Raises
    ------
    InvariantError
        If the Pager does not have exactly the hits of the compiled replay.
    """
    notes = {"notes": NOTES, "notes with cuts": replace(NOTES, cuts=NOTES_CUTS)}
    notes["notes, scaled"] = replace(NOTES, scale=steps["fitted"].scale)
    rows: list[dict[str, Any]] = []
    texts = []
    for done, path in enumerate(paths):
        text = load_text(path, selector, hbm_fraction)
        rows += _rows(text, notes | dict(steps), hbm_fraction, seed)
        texts.append(describe_recording(text.script.stream.recording, path))
        if progress is not None:
            progress(done + 1, len(paths), "held out")
    by_name = {name: [row["block_hit_ratio"] for row in rows if row["name"] == name] for name in {row["name"] for row in rows}}
    gains = [
        {"what": what, "from": first, "to": second,
         **mean_interval([100 * (b - a) for a, b in zip(by_name[first], by_name[second], strict=True)])}
        for what, first, second in GAINS
    ]  # fmt: skip
    means = [
        {"name": row["name"], "policy": row["policy"], **mean_interval(by_name[row["name"]])} for row in rows[: len(by_name)]
    ]
    return {"texts": texts, "rows": rows, "means": means, "gains": gains}


def _rows(text: Text, tried: Mapping[str, Constants], hbm_fraction: float, seed: int) -> list[dict[str, Any]]:
    """Replay one text: constants by the compiled loop; the fitted ones, blend and Belady by the Pager."""
    stream = text.script.stream
    rows: list[dict[str, Any]] = []
    ordered = sorted(tried.items(), key=lambda item: (item[1].scale, item[1].alpha))  # each EMA is followed once
    for name, constants in ordered:
        found = text.replay(constants, seed)
        counted = slice(text.warmup, None)
        rows.append(
            {
                "text": text.name, "name": name, "policy": constants.policy, "block_hits": int(found.hits[counted].sum()),
                "block_hit_ratio": float(found.hits[counted].sum() / text.accesses.sum()),
                "moves_per_step": float(found.moves[counted].mean()), "hbm_used": float(found.held[counted].mean() / text.units),
                "tier0_share": float(found.pinned[counted].mean() / text.units),
            }
        )  # fmt: skip
    rows.sort(key=lambda row: list(tried).index(row["name"]))
    for name, policy in (("fitted", tried["fitted"].policy), ("blend", "blend"), ("belady", "belady")):
        paged = run_case(stream, Case(policy, hbm_fraction, bound=False, seed=seed))
        if name == "fitted":
            quick = next(row["block_hits"] for row in rows if row["name"] == name)
            if quick != paged["block_hits"]:
                raise InvariantError(
                    f"{policy} on {text.name!r} hits {quick} in the compiled replay, {paged['block_hits']} in the Pager"
                )
        else:
            kept = ("policy", "block_hits", "block_hit_ratio", "moves_per_step")
            rows.append({"text": text.name, "name": name, **{key: paged[key] for key in kept}})
    return rows
