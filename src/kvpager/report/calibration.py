"""A calibration of the placement score, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvpager.report.document import Document, percent
from kvpager.report.plain import listed, table, wrapped

__all__ = ["print_calibration"]

_SYMBOLS = ("w_R", "w_E", "w_N")


def print_calibration(document: Document) -> list[str]:
    """Return the lines of a calibration.

    Parameters
    ----------
    document : Document
        As ``kvpager calibrate --json`` prints it.
    """
    fit, setting = document["fit"], document["setting"]
    texts = ", ".join(f"{one['text']} ({one['context_tokens']:,} tokens, {one['steps']} steps)" for one in document["train"])
    lines = wrapped(
        f"Fitted on {texts}: {percent(setting['hbm_fraction'], 2)} of the KV in HBM, one {setting['pool']} pool, access = "
        f"{setting['access']} ({document['evidence']})."
    )
    lines += table("Constants", ("constant", "notes", "fitted", "95 % interval", "within a\npoint"), "<>>>>", _constants(fit))
    if fit["scales"]:
        lines += table(
            "Scale of E, with the best weights in steps of 0.2",
            ("scale", "w_R / w_E / w_N", "block\nhits", "with the\nnotes' weights"),
            "<>>>",
            [
                (row["scale"], _weights(row["weights"]), *(percent(row[f"{of}block_hit_ratio"]) for of in ("", "notes_weights_")))
                for row in fit["scales"]
            ],
        )
    logistic = fit["logistic"]
    lines += ["", *wrapped(
        f"Logistic fit to what is asked for within {logistic['horizon_steps']} steps: w_R / w_E / w_N = "
        f"{_weights(logistic['weights'])} ({logistic['tuples']:,} sampled units, {percent(logistic['asked_share'])} asked for)."
    )]  # fmt: skip
    lines += ["", f"Fitted: {fit['policies']['fitted']}"]
    return lines + (_held_out(document["held_out"]) if "held_out" in document else ["", "No --test recording judged it."])


def _constants(fit: Mapping[str, Any]) -> list[tuple[str, ...]]:
    sweep, close = fit["sweep"], fit["sweep"]["within_1_point"]
    rows: list[tuple[str, ...]] = [
        (
            symbol, f"{notes:.2f}", f"{sweep['weights'][i]:.2f}", _span(sweep["low"][i], sweep["high"][i]),
            _span(close["low"][i], close["high"][i]),
        )
        for i, (symbol, notes) in enumerate(zip(_SYMBOLS, sweep["notes"], strict=True))
    ]  # fmt: skip
    rows += [
        (
            grid["constant"], f"{grid['notes']:g}", f"{grid['value']:g}", _span(grid["low"], grid["high"]),
            _span(*grid["within_1_point"]),
        )
        for grid in fit["grids"]
    ]  # fmt: skip
    cuts = fit["cuts"]
    for name, notes in zip(("cut_1", "cut_2"), cuts["notes"], strict=True):
        rows.append((name, f"{notes:g}", f"{cuts[name]['value']:.3g}", _span(cuts[name]["low"], cuts[name]["high"]), ""))
    return rows


def _held_out(found: Mapping[str, Any]) -> list[str]:
    texts = len({row["text"] for row in found["rows"]})
    means: Sequence[Mapping[str, Any]] = found["means"]
    used = {row["name"]: [one["hbm_used"] for one in found["rows"] if one["name"] == row["name"]] for row in means[:-2]}
    lines = table(
        f"On {texts} held-out text{'s' if texts > 1 else ''}",
        ("", "block\nhits", "HBM\nused"),
        "<>>",
        [
            (row["name"], percent(row["value"]), percent(sum(used[row["name"]]) / texts, 0) if row["name"] in used else "")
            for row in means
        ],
    )
    gains = [
        (row["what"], f"{row['value']:+.2f}", _span(row["low"], row["high"]) if "low" in row else "") for row in found["gains"]
    ]
    lines += table("Gains there, in points of block hits", ("what", "gain", "95 % interval"), "<>>", gains)
    return lines + listed("What the numbers mean", _MEANINGS)


_MEANINGS = (
    "notes: weights, alpha and zone of the notes, E raw; scaled: E on the scale that was chosen",
    "weights: those of R, E and N are fitted; fitted: alpha, half-life, zone too; with cuts: HBM keeps nothing below the first",
    "intervals of constants resample blocks of 16 steps of the train texts; those of gains are Student's, over held-out texts",
    "within a point: values whose block hits are at most one point below the best",
)


def _weights(weights: Sequence[float]) -> str:
    return " / ".join(f"{weight:.2f}" for weight in weights)


def _span(low: float, high: float) -> str:
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
