"""Calibration finds what was planted, keeps its laws, and says what it gained where it was not fitted."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.stored import save_recording

from kvpager.errors import BadInput, TraceError
from kvpager.policies import make_policy
from kvpager.replay.attention import Replay, capacity_units
from kvpager.replay.calibrate import Fit, calibrate
from kvpager.replay.constants import NOTES, Constants, Text, try_values
from kvpager.replay.fitting import (
    BLOCK_STEPS,
    Trials,
    Tuples,
    fit_logistic,
    logistic_interval,
    mean_interval,
    quantile_interval,
    sample_tuples,
    simplex,
    sums_by_block,
)
from kvpager.replay.linear import Features, Script
from kvpager.replay.stream import make_stream
from kvpager.selectors import SELECTORS
from kvpager.testing.recordings import SIGNALS, planted_recording, synthetic_recording

HBM = 0.15


def as_text(recording):
    stream = make_stream(recording, SELECTORS["topp_mass"]())
    return Text(Path("planted.zarr"), Script(stream), capacity_units(stream, HBM, "global"))


@pytest.fixture(scope="module")
def planted():
    return {signal: [as_text(planted_recording(signal, seed=seed)) for seed in (0, 1)] for signal in SIGNALS}


@pytest.mark.parametrize(("signal", "which"), [("recency", 0), ("mass", 1), ("sink", 2)])
def test_the_sweep_finds_the_planted_signal(planted, signal, which):
    fit = Fit(planted[signal], scales=["raw"], quick=True, jobs=1)
    found = fit.weights()
    assert np.argmax(found["weights"]) == which
    corners = try_values(planted[signal], [tuple(row) for row in np.eye(3)], lambda w: Constants(weights=w, scale="raw"))
    assert corners.means.argmax() == which
    assert corners.means[which] > np.delete(corners.means, which).max() + 0.05
    assert found["low"][which] > 0


@pytest.mark.parametrize(("signal", "which"), [("recency", 0), ("sink", 2)])
def test_the_logistic_fit_finds_it_too(planted, signal, which):
    known = [text.features(replace(NOTES, half_life=4.0)) for text in planted[signal]]
    tuples = Tuples.join([sample_tuples(features, 16, 4000, 0) for features in known])
    rows, asked = tuples.labels(4)
    found = logistic_interval(rows, asked, draws=20, seed=0)
    assert found["low"][which] > 0.2
    assert found["weights"][which] > found["weights"][2 - which]  # R against N


def test_tuples_are_what_was_known_and_what_came(planted):
    text = planted["mass"][0]
    tuples = sample_tuples(text.features(NOTES), text.warmup, 600, seed=3)
    recording = text.script.stream.recording
    steps = recording.steps - 1 - tuples.left
    assert steps.min() == text.warmup
    assert np.array_equal(tuples.block, (steps - text.warmup) // BLOCK_STEPS)
    asked = {}
    for ask in text.script.stream.asks:
        asked.setdefault(ask.tick.step, set()).update(ask.units.tolist())
    known = dict(text.features(NOTES).steps())
    for step in (text.warmup, recording.steps - 2):
        mine = steps == step
        rows = {tuple(row) for row in known[step].T.tolist()}
        assert all(tuple(row) in rows for row in tuples.features[mine].tolist())
        share = len(asked[step + 1]) / (recording.open_block(step) * 4)
        assert abs((tuples.wait[mine] == 1).mean() - share) < 0.5
    assert sample_tuples(text.features(NOTES), text.warmup, 600, seed=3).wait.tolist() == tuples.wait.tolist()


def test_waits_by_brute_force():
    recording = planted_recording("recency", steps=12)
    script = Script(make_stream(recording, SELECTORS["topp_mass"]()))
    features = Features(script, scale="raw")
    wide = recording.open_block(11) * 4
    tuples = sample_tuples(features, 3, wide * 9, seed=0)  # every complete unit at every step, in some order
    slow = []
    uses = [(ask.tick.step, set(ask.units.tolist())) for ask in script.stream.asks]
    for step in range(3, 12):
        for unit in range(recording.open_block(step) * 4):
            later = [at - step for at, units in uses if at > step and unit in units]
            slow.append((step, min(later, default=10**6)))
    fast = [(11 - left, min(wait, 10**6)) for left, wait in zip(tuples.left, tuples.wait, strict=True)]
    assert sorted(fast) == sorted(slow)


@settings(max_examples=40, deadline=None)
@given(
    features=arrays(np.float64, (30, 3), elements=st.floats(0, 1, width=16)),
    asked=arrays(np.bool_, 30),
)
def test_fitted_weights_lie_on_the_simplex(features, asked):
    weights, theta = fit_logistic(features, asked)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1) or not weights.any()
    assert (theta[:3] >= 0).all()
    assert np.isfinite(theta).all()


def test_the_logistic_fit_is_the_least_loss():
    rng = np.random.default_rng(0)
    features = rng.random((4000, 3))
    asked = rng.random(4000) < 1 / (1 + np.exp(-(features @ [3.0, 1.0, 0.0] - 2)))
    weights, theta = fit_logistic(features, asked)
    assert np.allclose(weights, [0.75, 0.25, 0.0], atol=0.08)

    def loss(theta):
        margin = features @ theta[:3] + theta[3]
        return (np.logaddexp(0, margin) - asked * margin).mean()

    for _ in range(200):
        other = np.maximum(theta + rng.normal(0, 0.05, 4), [0, 0, 0, -np.inf])
        assert loss(other) > loss(theta) - 1e-5


@pytest.mark.parametrize("parts", [1, 4, 20])
def test_the_simplex_is_whole(parts):
    points = simplex(parts)
    assert len(points) == (parts + 1) * (parts + 2) // 2 == len({tuple(point) for point in points})
    assert np.allclose(points.sum(axis=1), 1)
    assert points.min() == 0


def test_blocks_hold_every_counted_step():
    values = np.arange(70)
    assert sums_by_block(values, 7).sum() == values[7:].sum()
    assert len(sums_by_block(values, 7)) == 3
    assert sums_by_block(values[:20], 10).tolist() == [values[10:20].sum()]


def test_trials_take_the_best_mean_and_keep_what_is_as_good():
    hits = [np.array([[5, 5], [8, 0], [8, 8]]), np.array([[10, 10], [10, 10], [4, 4]])]
    trials = Trials(["a", "b", "c"], hits, [np.array([10, 10]), np.array([10, 10])])
    assert trials.ratios.tolist() == [[0.5, 1.0], [0.4, 1.0], [0.8, 0.4]]
    assert (trials.best(), trials.best("a"), trials.best("c")) == (0, 0, 0)
    assert trials.within(6) == ["a", "b"]
    assert set(trials.drawn(100, seed=0)) == {0, 1}
    same = Trials([1, 2], [np.array([[3], [3]])], [np.array([4])])
    assert (same.best(), same.best(2), same.drawn(5, 0, 2).tolist()) == (0, 1, [1] * 5)


def test_intervals():
    assert mean_interval([2.0]) == {"value": 2.0}
    found = mean_interval([1.0, 2.0, 3.0])
    assert found["value"] == 2
    assert found["high"] - found["value"] == pytest.approx(4.302653 / np.sqrt(3), rel=1e-5)  # Student's t, 2 degrees, 97.5 %
    values = np.arange(1000) / 1000
    top = quantile_interval(values, np.arange(1000) // 100, 0.1, draws=50, seed=0)
    assert top["value"] == pytest.approx(0.8991)
    assert top["low"] <= top["value"] <= top["high"]


def test_labels_that_are_all_the_same_are_refused():
    tuples = Tuples(np.ones((4, 3)), np.ones(4, np.int64), np.full(4, 9), np.zeros(4, np.int64))
    with pytest.raises(BadInput, match="all of 4 sampled units are asked for again"):
        logistic_interval(tuples, np.ones(4, bool), draws=1, seed=0)
    with pytest.raises(BadInput, match="neither recency nor EMA nor sink zone"):
        logistic_interval(tuples, np.array([True, False] * 2), draws=1, seed=0)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    made = {f"{signal}{seed}": planted_recording(signal, seed=seed) for signal in ("recency", "mass") for seed in (0, 1)}
    made["short"] = planted_recording("mass", steps=20, seed=5)
    return {name: save_recording(recording, folder / f"{name}.zarr") for name, recording in made.items()}


@pytest.fixture(scope="module")
def document(stored):
    said = []
    found = calibrate(
        [stored["recency0"]], [stored["recency1"]], hbm_fraction=HBM, quick=True, jobs=2, progress=lambda *told: said.append(told)
    )
    assert {what for _, _, what in said} >= {"weights", "alpha", "half life", "sink tokens", "nearby", "horizons", "held out"}
    return found


def test_every_part_of_the_fit(document):
    fit = document["fit"]
    assert set(fit) == {"scales", "sweep", "grids", "sweep_again", "logistic", "horizons", "cuts", "policies"}
    assert fit["sweep"]["points"] == len(fit["sweep"]["rows"]) == 66
    best = max(row["block_hit_ratio"] for row in fit["sweep"]["rows"])
    assert fit["sweep"]["block_hit_ratio"] == best
    for grid in fit["grids"]:
        values = [row["value"] for row in grid["rows"]]
        assert grid["notes"] in values
        assert grid["within_1_point"][0] <= grid["value"] <= grid["within_1_point"][1]
        assert grid["block_hit_ratio"] == max(row["block_hit_ratio"] for row in grid["rows"])
    for policy in fit["policies"].values():
        make_policy(policy)
    assert [row["horizon_steps"] for row in fit["horizons"]] == [1, 4, 16]


def test_constants_never_get_worse_where_they_are_fitted(document):
    fit = document["fit"]
    path = [
        fit["sweep"]["block_hit_ratio"],
        *(grid["block_hit_ratio"] for grid in fit["grids"]),
        fit["sweep_again"]["block_hit_ratio"],
    ]
    assert all(b >= a - 1e-4 for a, b in pairwise(path))


def test_held_out_gains_are_differences_of_its_rows(document):
    found = document["held_out"]
    ratios = {row["name"]: row["block_hit_ratio"] for row in found["rows"]}
    assert ratios["belady"] == max(ratios.values())
    for gain in found["gains"]:
        assert gain["value"] == pytest.approx(100 * (ratios[gain["to"]] - ratios[gain["from"]]))
        assert "low" not in gain  # one text has no interval
    assert ratios["fitted"] > ratios["notes"]


def test_held_out_rows_are_the_policys(document, stored):
    stream = make_stream(planted_recording("recency", seed=1), SELECTORS["topp_mass"]())
    units = capacity_units(stream, HBM, "global")
    for row in document["held_out"]["rows"]:
        counts = Replay(stream, make_policy(row["policy"]), units).run()
        assert row["block_hits"] == counts.hits, row["policy"]
        assert row["moves_per_step"] == counts.kept / counts.steps


def test_cuts_fill_hbm(document):
    (row,) = [row for row in document["held_out"]["rows"] if row["name"] == "fitted with cuts"]
    assert 0.7 < row["hbm_used"] <= 1
    cuts = document["fit"]["cuts"]
    assert cuts["cut_1"]["value"] <= cuts["cut_2"]["value"]


def test_what_makes_no_difference_keeps_the_notes_value():
    text = as_text(planted_recording("recency"))
    fit = Fit([text], scales=["raw"], quick=True, jobs=1)
    fit.fitted = replace(fit.fitted, weights=(1.0, 0.0, 0.0))
    assert fit.grid("alpha", (0.1, 0.5))["value"] == NOTES.alpha
    assert fit.grid("sink_tokens", (0, 16))["value"] == NOTES.sink_tokens
    assert (fit.fitted.alpha, fit.fitted.sink_tokens) == (NOTES.alpha, NOTES.sink_tokens)


def test_bad_input(stored):
    one = stored["mass0"]
    with pytest.raises(BadInput, match="nothing to fit on"):
        calibrate([], [one], hbm_fraction=HBM)
    with pytest.raises(BadInput, match="same text as train recording"):
        calibrate([one], [stored["mass1"], one], hbm_fraction=HBM)
    with pytest.raises(BadInput, match="named twice"):
        calibrate([one, one], hbm_fraction=HBM)
    with pytest.raises(BadInput, match=r"20 steps, 15 of them after the warm-up.*needs 32: record 43 steps"):
        calibrate([stored["short"]], hbm_fraction=HBM)
    with pytest.raises(BadInput, match=r"needs 100: record 134 steps"):
        calibrate([one], hbm_fraction=HBM, horizon=50)
    with pytest.raises(BadInput, match="horizon of 0 steps"):
        calibrate([one], hbm_fraction=HBM, horizon=0)
    with pytest.raises(BadInput, match="unknown scale 'rnak'"):
        calibrate([one], hbm_fraction=HBM, scales=["rnak"])
    with pytest.raises(TraceError, match=r"missing\.zarr"):
        calibrate([one], [one.parent / "missing.zarr"], hbm_fraction=HBM)


def test_a_recording_by_another_name_is_still_the_same_text(stored, tmp_path):
    copy = save_recording(planted_recording("mass", seed=0), tmp_path / "copy.zarr")
    with pytest.raises(BadInput, match="same text as train recording"):
        calibrate([stored["mass0"]], [copy], hbm_fraction=HBM)


def test_planted_recordings_are_whole():
    for signal in SIGNALS:
        recording = planted_recording(signal, steps=6)
        assert np.allclose(recording.mass.astype(np.float64).sum(axis=-1), 1, atol=2e-3)
        assert recording.steps == 6
        assert recording.header.context_tokens == 1280
    with pytest.raises(BadInput, match="unknown signal"):
        planted_recording("luck")
    assert synthetic_recording(steps=3).mass.shape[0] == 3
