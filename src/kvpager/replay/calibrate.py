"""Calibration of the placement score: what its weights, cuts and constants would have to be, and what that is worth.

Fitted on the train recordings alone, at one HBM size, in one global pool. In order: the scale of E; a sweep of the weights
over the simplex; alpha, half-life and sink zone one after the other; the weights again, near by; a logistic fit beside them;
the cuts that fill HBM and tier 0. Held-out recordings then decide (`kvpager.replay.heldout`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvpager.errors import BadInput
from kvpager.policies.scores import NORMALISERS
from kvpager.replay.constants import NOTES, NOTES_CUTS, Constants, Progress, Text, load_text, try_values, whole_weights
from kvpager.replay.fitting import Trials, Tuples, logistic_interval, quantile_interval, sample_tuples, simplex
from kvpager.replay.heldout import check_apart, held_out, summary
from kvpager.replay.provenance import describe_recording

__all__ = ["ALPHAS", "HALF_LIVES", "HORIZONS", "SINKS", "Fit", "calibrate"]

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
SINKS = (0, 16, 32, 64, 100, 200)
HORIZONS = (1, 4, 16, 64)

TIER0_SHARE = 10 / 47
"""The notes' pinned part of HBM's KV: 10 of 47 GB."""


def calibrate(
    train: Sequence[Path], test: Sequence[Path] = (), *, hbm_fraction: float, scales: Sequence[str] = NORMALISERS,
    selector: str = "topp_mass", horizon: int = 16, quick: bool = False, seed: int = 0, jobs: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fit the placement score on `train` and judge the fit on `test`.

    Parameters
    ----------
    train, test : sequence of Path
        Recordings of attention; none may be in both.
    hbm_fraction : float
        HBM's payload as a share of all KV.
    scales : sequence of str
        Scales of E to choose among.
    selector : str
        What counts as an access, in written form.
    horizon : int
        Steps ahead in which an access counts, for the logistic fit.
    quick : bool
        Coarser weights and fewer resamplings.
    seed : int
        Of ties, sampling and resampling.
    jobs : int
        Threads; 0 = one a core.
    progress : callable, optional
        Told (done, total, what).

    Returns
    -------
    dict
        ``train`` (what the recordings are), ``setting``, ``fit`` and, with test recordings, ``held_out``.

    Raises
    ------
    BadInput
        If there is no train recording, one is given twice or for both, one is too short, or a scale is unknown.
    """
    if not train:
        raise BadInput("there is nothing to fit on: name at least one recording before --test")
    if horizon < 1:
        raise BadInput(f"a horizon of {horizon} steps looks at nothing: give 1 or more")
    for name in scales:
        if name not in NORMALISERS:
            raise BadInput(f"unknown scale {name!r}: choose among {', '.join(NORMALISERS)}")
    check_apart(train, test, horizon)
    texts = [load_text(path, selector, hbm_fraction) for path in train]
    fit = Fit(texts, scales=scales, horizon=horizon, quick=quick, seed=seed, jobs=jobs, progress=progress)
    stream = texts[0].script.stream
    document: dict[str, Any] = {
        "train": [describe_recording(text.script.stream.recording, text.path) for text in texts],
        "setting": {
            "hbm_fraction": hbm_fraction, "pool": "global", "granularity": stream.setting.granularity,
            "clock": stream.setting.clock, "observe": stream.setting.observe, "selector": selector,
            "access": stream.selector.describe(), "quick": quick,
        },
        "fit": fit.run(),
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    for done, path in enumerate(test):
        rows += held_out(path, fit.steps, selector=selector, hbm_fraction=hbm_fraction, seed=seed)
        if progress is not None:
            progress(done + 1, len(test), "held out")
    if test:
        document |= {"held_out": summary(rows) | {"rows": rows}}
    return document


class Fit:
    """The fit on train texts, part by part; each part is a plain object for JSON.

    Parameters
    ----------
    texts : sequence of Text
        Train.
    scales : sequence of str
        Scales of E to choose among.
    horizon : int
        Steps ahead in which an access counts, for the logistic fit.
    quick : bool
        Weights in steps of 0.1 and fewer resamplings.
    seed : int
        Of ties, sampling and resampling.
    jobs : int
        Threads; 0 = one a core.
    progress : callable, optional
        Told (done, total, what).

    Attributes
    ----------
    fitted : Constants
        The best so far.
    steps : dict of str to Constants
        What held-out recordings are to judge; made by `run`.
    """

    def __init__(
        self, texts: Sequence[Text], *, scales: Sequence[str] = NORMALISERS, horizon: int = 16, quick: bool = False,
        seed: int = 0, jobs: int = 0, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        self.texts, self.horizon, self.quick, self.seed = list(texts), horizon, quick, seed
        self._how: dict[str, Any] = {"jobs": jobs, "seed": seed, "progress": progress}
        self._draws, self._parts = (50, 10) if quick else (200, 20)
        self.fitted = Constants(scale=scales[0])
        self.steps: dict[str, Constants] = {}
        self._scales = list(scales)

    def run(self) -> dict[str, Any]:
        """Fit everything."""
        found: dict[str, Any] = {"scales": self.scale(), "sweep": self.weights()}
        self.steps["weights"] = self.fitted
        found["grids"] = [self.grid("alpha", ALPHAS), self.grid("half_life", HALF_LIVES), self.grid("sink_tokens", SINKS)]
        found["sweep_again"] = self.weights(near=0.15)
        self.steps["fitted"] = self.fitted
        tuples = self._tuples()
        found["logistic"] = self.logistic(tuples)
        self.steps["logistic"] = replace(self.fitted, weights=whole_weights(found["logistic"]["weights"]))
        found["horizons"] = self.horizons(tuples)
        found["cuts"] = self.cuts(tuples)
        self.steps["fitted with cuts"] = self.fitted
        return found | {"policies": {name: constants.policy for name, constants in self.steps.items()}}

    def scale(self) -> list[dict[str, Any]]:
        """Choose the scale of E by the best weights, in steps of 0.2, that each has; one scale needs no choice."""
        if len(self._scales) < 2:
            return []
        rows: list[dict[str, Any]] = []
        for name in self._scales:
            base = replace(self.fitted, scale=name)
            points = [base.weights, *map(_three, simplex(5).tolist())]
            trials = try_values(self.texts, points, partial(_weighted, base), what=f"weights {name}", **self._how)
            rows.append(
                {
                    "scale": name, "weights": list(points[trials.best()]), "block_hit_ratio": float(trials.means.max()),
                    "notes_weights_block_hit_ratio": float(trials.means[0]),
                }
            )  # fmt: skip
        best = int(np.argmax([row["block_hit_ratio"] for row in rows]))
        self.fitted = replace(self.fitted, scale=self._scales[best])
        return rows

    def weights(self, near: float = 1.0) -> dict[str, Any]:
        """Sweep the weights over the simplex, or over what differs by at most `near` from the best so far; take the best."""
        points = simplex(self._parts)
        points = points[(np.abs(points - np.array(self.fitted.weights)) <= near + 1e-9).all(axis=1)]
        trials = try_values(
            self.texts, map(_three, points.tolist()), partial(_weighted, self.fitted), what="weights" if near == 1 else "nearby",
            **self._how,
        )  # fmt: skip
        before = self.fitted.weights
        low, high = np.percentile(points[trials.drawn(self._draws, self.seed, before)], [2.5, 97.5], axis=0)
        self.fitted = replace(self.fitted, weights=trials.values[trials.best(before)])
        close = np.array(trials.within(1.0))
        return {
            "step": 1 / self._parts,
            "points": len(points),
            "notes": list(NOTES.weights),
            "weights": list(self.fitted.weights),
            "low": low.tolist(),
            "high": high.tolist(),
            "block_hit_ratio": float(trials.means.max()),
            "worst_block_hit_ratio": float(trials.means.min()),
            "within_1_point": {"points": len(close), "low": close.min(axis=0).tolist(), "high": close.max(axis=0).tolist()},
            "rows": [{"weights": list(value), "block_hit_ratio": float(mean)} for value, mean in _rows(trials)],
        }

    def grid(self, name: str, values: Sequence[Any]) -> dict[str, Any]:
        """Try values of one constant around the fitted and the notes' point, both with E scaled alike; take the former's best."""
        values = sorted({*values, getattr(NOTES, name)})
        points = [
            replace(base, **{name: value}) for base in (self.fitted, replace(NOTES, scale=self.fitted.scale)) for value in values
        ]
        both = try_values(self.texts, points, lambda point: point, what=name.replace("_", " "), **self._how)
        trials, around = (
            Trials(values, [hits[part] for hits in both.hits], both.accesses)
            for part in (slice(len(values)), slice(len(values), None))
        )
        best = values[trials.best(getattr(NOTES, name))]
        self.fitted = replace(self.fitted, **{name: best})
        rows = [
            {"value": value, "block_hit_ratio": float(mean), "around_notes_block_hit_ratio": float(other)}
            for (value, mean), other in zip(_rows(trials), around.means, strict=True)
        ]
        return {
            "constant": name,
            "notes": getattr(NOTES, name),
            **self._found(trials, name),
            "around_notes": self._found(around, name),
            "rows": rows,
        }

    def logistic(self, tuples: Tuples) -> dict[str, Any]:
        """Fit the weights to what was asked for within the horizon."""
        rows, asked = tuples.labels(self.horizon)
        return {"horizon_steps": self.horizon, **logistic_interval(rows, asked, draws=self._draws, seed=self.seed)}

    def horizons(self, tuples: Tuples) -> list[dict[str, Any]]:
        """Fit the weights for several horizons and replay each."""
        found = []
        for horizon in sorted({*HORIZONS, self.horizon}):
            rows, asked = tuples.labels(horizon)
            if 0 < asked.sum() < len(asked):
                weights = whole_weights(logistic_interval(rows, asked, draws=0, seed=self.seed)["weights"])
                tried = try_values(self.texts, [weights], partial(_weighted, self.fitted), what="horizons", **self._how)
                found.append({"horizon_steps": horizon, "weights": list(weights), "block_hit_ratio": float(tried.means[0])})
        return found

    def cuts(self, tuples: Tuples) -> dict[str, Any]:
        """Choose the cuts that fill HBM, and tier 0's share of it, with the fitted score."""
        score = tuples.features @ np.array(self.fitted.weights)
        share = float(np.mean([_closed_share(text) for text in self.texts]))
        first, second = (
            quantile_interval(score, tuples.block, part, draws=self._draws, seed=self.seed)
            for part in (share, share * TIER0_SHARE)
        )
        self.fitted = replace(self.fitted, cuts=(round(first["value"], 4), round(second["value"], 4)))
        return {"notes": list(NOTES_CUTS), "tier0_share": TIER0_SHARE, "cut_1": first, "cut_2": second}

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _tuples(self) -> Tuples:
        count = (20_000 if self.quick else 100_000) // len(self.texts)
        return Tuples.join(
            [
                sample_tuples(text.features(self.fitted), text.warmup, count, self.seed + number)
                for number, text in enumerate(self.texts)
            ]
        )

    def _found(self, trials: Trials, name: str) -> dict[str, Any]:
        """Best value, its interval, and how flat it is around: what makes no difference keeps the notes' value."""
        before, close = getattr(NOTES, name), trials.within(1.0)
        low, high = np.percentile(np.array(trials.values)[trials.drawn(self._draws, self.seed, before)], [2.5, 97.5])
        return {
            "value": trials.values[trials.best(before)],
            "low": float(low),
            "high": float(high),
            "block_hit_ratio": float(trials.means.max()),
            "within_1_point": [min(close), max(close)],
        }


def _rows(trials: Trials) -> list[tuple[Any, float]]:
    return list(zip(trials.values, trials.means.tolist(), strict=True))


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = values
    return first, second, third


def _weighted(base: Constants, weights: tuple[float, float, float]) -> Constants:
    return replace(base, weights=weights)


def _closed_share(text: Text) -> float:
    """Share of the complete units that HBM has room for beside the open ones, mean over the counted steps."""
    recording, (_, layers, heads) = text.script.stream.recording, text.script.shape
    wide = layers * heads
    shares = [(text.units - wide) / (recording.open_block(step) * wide) for step in range(text.warmup, recording.steps)]
    return float(np.mean(shares))
