"""The constants of the placement score: what fits two texts, and what that gains on seven others.

Scale of E, weights, alpha, half-life, sink zone and cuts, fitted by `kvpager.replay.calibrate` on the train texts at the
notes' HBM size (6.84 % of all KV), one global pool; then alpha alone, for the bare EMA, at three sizes on every text.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from experiments.study import Interval, Study, interval
from experiments.texts import TEST, TRAIN
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.replay.attention import capacity_units
from kvpager.replay.calibrate import ALPHAS, Fit
from kvpager.replay.constants import NOTES, Constants, load_text
from kvpager.replay.heldout import held_out, summary
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.linear import Features, replay_linear

CLAIMS = ("ema-alpha", "p-weights", "p-thresholds")
SIZES = (NOTE_HBM_FRACTION, 0.10, 0.25)
SELECTOR = "topp_mass"
SIZE = f"{100 * NOTE_HBM_FRACTION:.2f} % of the KV in one pool"
MATTERS = 1.0
"""Points of block_hit_ratio from which a constant is worth its own calibration."""


def run(study: Study) -> None:
    """Fit on the train texts, judge on the others."""
    study.seeds = [0]
    fit, steps = _fit(study)
    rows = [row for text in TEST for row in _judged(study, text, steps)]
    gains = {gain["what"]: Interval(gain["value"], gain["low"], gain["high"]) for gain in summary(rows)["gains"]}
    _weights(study, fit, gains, rows)
    _cuts(study, fit, gains, rows)
    _alpha(study)
    _register(study, fit)
    for what, gain in gains.items():
        study.sign(what, gain)


def _fit(study: Study) -> tuple[dict[str, Any], dict[str, Constants]]:
    """Return the fit as `Fit.run` gives it, and the constants that are to be judged."""

    def make() -> list[dict[str, Any]]:
        texts = [load_text(study.recording(text), SELECTOR, NOTE_HBM_FRACTION) for text in TRAIN]
        fit = Fit(texts, quick=study.quick, jobs=1, progress=lambda done, total, what: study.say(f"{what} {done}/{total}"))
        found = fit.run() | {"constants": {name: asdict(one) for name, one in fit.steps.items()}}
        return [{"part": "fit", "document": orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY).decode()}]

    (row,) = study.once(f"fit on {TRAIN} at {NOTE_HBM_FRACTION}", make)
    found = orjson.loads(row["document"])
    for point in found["sweep"]["rows"]:
        study.rows.append(
            {"part": "point", **dict(zip("REN", point["weights"], strict=True)), "block_hit_ratio": point["block_hit_ratio"]}
        )
    steps = {}
    for name, one in found["constants"].items():
        first, second, third = one["weights"]
        steps[name] = Constants(**one | {"weights": (first, second, third), "cuts": one["cuts"] and tuple(one["cuts"])})
    return found, steps


def _judged(study: Study, text: str, steps: dict[str, Constants]) -> list[dict[str, Any]]:
    key = f"held out {text}: {[one.policy for one in steps.values()]}"
    return study.once(key, lambda: held_out(study.recording(text), steps, selector=SELECTOR, hbm_fraction=NOTE_HBM_FRACTION))


def _mean(rows: list[dict[str, Any]], name: str, figure: str = "block_hit_ratio") -> Interval:
    return interval([100 * row[figure] for row in rows if row["name"] == name])


def _outcome(gain: Interval) -> str:
    """Contradicted where surely more than `MATTERS` is lost, supported where surely less is."""
    return CONTRADICTED if gain.low > MATTERS else SUPPORTED if gain.high < MATTERS else INCONCLUSIVE


def _said(gain: Interval) -> str:
    return f"{gain.value:z.1f} ({gain.low:z.1f} to {gain.high:z.1f})"


def _span(low: float, high: float) -> str:
    return f"{low:.2g}" if low == high else f"{low:.2g} to {high:.2g}"


def _weights(study: Study, fit: dict[str, Any], gains: dict[str, Interval], rows: list[dict[str, Any]]) -> None:
    found, gain, every = fit["sweep"], gains["weights"], gains["all of these"]
    close = found["within_1_point"]
    spans = ", ".join(f"{name} {_span(close['low'][i], close['high'][i])}" for i, name in enumerate("REN"))
    study.find(
        "p-weights",
        _outcome(gain),
        f"fitted on {len(TRAIN)} texts (SmolLM2, {SIZE}, E by {fit['constants']['fitted']['scale']!r}), the weights of R, E "
        "and N are "
        f"{' / '.join(f'{weight:.2f}' for weight in found['weights'])} instead of 0.25 / 0.55 / 0.20; that gains {_said(gain)} "
        "points of "
        f"block hits on {len(TEST)} other texts. Flat: {close['points']} of {found['points']} weightings are within a point of "
        "the "
        f"best ({spans})",
        value=gain.value, low=gain.low, high=gain.high, unit="points",
    )  # fmt: skip
    names = ("notes", "notes, scaled", "weights", "fitted", "blend", "belady")
    hits = {name: f"{_mean(rows, name).value:.1f}" for name in names}
    study.result(
        "calibrated-constants",
        f"what calibration is worth on {len(TEST)} held-out texts (SmolLM2, {SIZE}): from {hits['notes']} % of block hits with "
        "the notes' "
        f"constants to {hits['fitted']} %, {_said(every)} points more; of these the scale of E brings "
        f"{_said(gains['scale of E'])}, the "
        f"weights {_said(gain)}, alpha, half-life and zone {_said(gains['alpha, half-life, sink zone'])}. A logistic fit "
        "instead of the "
        f"sweep changes {_said(gains['logistic fit, beside the sweep'])}. The blend has {hits['blend']} %, "
        f"{_said(gains['blend, beside the fitted score'])} more than the best placement score; Belady {hits['belady']} %",
        value=every.value, low=every.low, high=every.high, unit="points",
    )  # fmt: skip


def _cuts(study: Study, fit: dict[str, Any], gains: dict[str, Interval], rows: list[dict[str, Any]]) -> None:
    gain, cuts = gains["cuts"], fit["cuts"]
    notes, mine = (_mean(rows, name, "hbm_used") for name in ("fitted, notes' cuts", "fitted with cuts"))
    study.find(
        "p-thresholds",
        _outcome(gain),
        f"cuts that fill HBM and tier 0 on {len(TRAIN)} train texts are {cuts['cut_1']['value']:.3f} and "
        f"{cuts['cut_2']['value']:.3f} "
        f"for the fitted score, not 0.3 and 0.6. On {len(TEST)} other texts they use {mine.value:.0f} % of HBM, the notes' "
        f"{notes.value:.0f} %, and gain {_said(gain)} points of block hits. With the notes' own score their cuts use "
        f"{_mean(rows, 'notes with cuts', 'hbm_used').value:.0f} % of HBM, and {_mean(rows, 'notes with cuts').value:.1f} % of "
        "the "
        f"accesses hit, against {_mean(rows, 'notes').value:.1f} % where the same score fills HBM by rank. Without cuts the "
        "fitted score "
        f"has {_said(gains['filling HBM, beside the fitted cuts'])} more: a cut bounds no bytes, a ranking does",
        value=gain.value, low=gain.low, high=gain.high, unit="points",
    )  # fmt: skip


def _register(study: Study, fit: dict[str, Any]) -> None:
    """State the fits for the register of constants."""
    sweep, grids = fit["sweep"], {grid["constant"]: grid for grid in fit["grids"]}
    close = [*zip(sweep["within_1_point"]["low"], sweep["within_1_point"]["high"], strict=True)]
    study.constant("w_R, w_E, w_N", sweep["weights"], sweep["low"], sweep["high"], close)
    for symbol, name in (("alpha", "alpha"), ("A", "sink_tokens")):
        grid = grids[name]
        study.constant(symbol, [grid["value"]], [grid["low"]], [grid["high"]], [grid["within_1_point"]])
    for name in ("cut_1", "cut_2"):
        cut = fit["cuts"][name]
        study.constant(name, [cut["value"]], [cut["low"]], [cut["high"]])


def _alpha(study: Study) -> None:
    """The bare EMA at each alpha: fitted on the train texts, judged on the others, at each size."""
    rows = [row for text in (*TRAIN, *TEST) for row in _alphas(study, text)]
    said, gains = [], {}
    for size in SIZES:
        here = {(row["name"], row["alpha"]): row["block_hit_ratio"] for row in rows if row["hbm_fraction"] == size}
        train = {alpha: interval([here[text, alpha] for text in TRAIN]).value for alpha in ALPHAS}
        best = max(train, key=lambda alpha: train[alpha])
        close = [alpha for alpha in ALPHAS if train[alpha] >= train[best] - MATTERS / 100]
        gains[size] = interval([100 * (here[text, best] - here[text, NOTES.alpha]) for text in TEST])
        own = sorted(max(ALPHAS, key=lambda alpha: here[text, alpha]) for text in TEST)
        said.append(
            f"at {100 * size:.3g} % {best:g} (within a point {_span(min(close), max(close))}), which gains "
            f"{gains[size].value:+.2f} "
            f"({gains[size].low:+.2f} to {gains[size].high:+.2f}) over 0.2 on {len(TEST)} other texts, whose own best are "
            f"{_span(own[0], own[-1])}"
        )  # fmt: skip
        study.sign(f"points of the fitted alpha over 0.2 at {100 * size:.3g} %", gains[size])
    worst = max(gains.values(), key=lambda gain: gain.value)
    study.find(
        "ema-alpha",
        _outcome(worst),
        f"for the bare EMA in one pool (SmolLM2), the best alpha on {len(TRAIN)} train texts is " + "; ".join(said),
        value=worst.value, low=worst.low, high=worst.high, unit="points",
    )  # fmt: skip


def _alphas(study: Study, text: str) -> list[dict[str, Any]]:
    def make() -> list[dict[str, Any]]:
        one, found = load_text(study.recording(text), SELECTOR, SIZES[0]), []
        for alpha in ALPHAS:
            features = Features(one.script, alpha, "raw")
            for size in SIZES:
                units = capacity_units(one.script.stream, size, "global")
                hits = replay_linear(features, (0, 1, 0), units).hits[one.warmup :].sum()
                ratio = float(hits / one.accesses.sum())
                found.append({"part": "alpha", "name": text, "hbm_fraction": size, "alpha": alpha, "block_hit_ratio": ratio})
        return found

    return study.once(f"alpha {text}: {SIZES} {ALPHAS}", make)
