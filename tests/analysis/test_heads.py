"""Head kinds on hand-made masses, and the interval against its defining equation."""

from dataclasses import replace

import numpy as np
import pytest

from kvpager.analysis.heads import classify, wilson_interval
from kvpager.testing.recordings import synthetic_recording


def recording_of(*heads, group=2, layers=1, context_tokens=1000):
    """A recording whose query heads have the given special masses (first_1, first_4, first_100, last_200, newest)."""
    base = synthetic_recording(
        num_layers=layers, num_kv_heads=len(heads) // group // layers, group=group, context_tokens=context_tokens, steps=2
    )
    rows = np.array(heads, np.float16).reshape(1, layers, -1, 5)
    return replace(base, special=np.repeat(rows, 2, axis=0))


ANCHOR = (0.5, 0.625, 0.625, 0.25, 0.25)
RECENCY = (0, 0, 0.0625, 0.875, 0.75)
SPREAD = (0, 0.125, 0.25, 0.25, 0.25)
BOTH = (0.5, 0.5, 0.5, 0.5, 0.5)


def test_kinds_of_query_heads():
    got = classify(recording_of(ANCHOR, RECENCY, SPREAD, BOTH))
    assert {kind: row["count"] for kind, row in got["q_heads"]["kinds"].items()} == {"anchor": 2, "recency": 1, "other": 1}
    assert got["by_layer"] == [["anchor", "recency", "other", "anchor"]]
    assert got["q_heads"]["count"] == 4
    assert sum(row["share"] for row in got["q_heads"]["kinds"].values()) == pytest.approx(1)


def test_anchor_goes_before_recency_where_the_zones_overlap():
    got = classify(recording_of((0, 0.125, 0.75, 0.875, 0.5), SPREAD, context_tokens=128))
    assert got["by_layer"] == [["anchor", "other"]]


def test_setting_the_sink_aside_turns_anchors_into_what_they_are():
    got = classify(recording_of(ANCHOR, RECENCY, SPREAD, BOTH))
    assert got["by_layer_without_sink"] == [["other", "recency", "other", "recency"]]
    assert got["q_heads"]["without_sink"]["anchor"]["count"] == 0


def test_wide_anchor_zone_survives():
    """Mass on tokens 4-99 is an anchor zone, sink or not."""
    got = classify(recording_of((0, 0.1, 0.7, 0.2, 0.2), SPREAD))
    assert got["by_layer_without_sink"][0][0] == "anchor"


def test_kv_head_is_the_mean_of_its_group():
    got = classify(recording_of(ANCHOR, RECENCY, RECENCY, RECENCY))
    assert got["kv_heads"]["count"] == 2
    assert {kind: row["count"] for kind, row in got["kv_heads"]["kinds"].items()} == {"anchor": 0, "recency": 1, "other": 1}
    assert got["mixture"]["recency"] == pytest.approx((0.5625 + 0.875) / 2, abs=1e-4)
    assert sum(got["mixture"].values()) == pytest.approx(1, abs=1e-3)


def test_largest_share():
    got = classify(recording_of(ANCHOR, RECENCY, SPREAD, RECENCY))
    assert got["q_heads"]["largest_share"] == {"anchor": 0.25, "recency": 0.5, "between": 0.25}


def test_layers_stay_apart():
    got = classify(recording_of(ANCHOR, ANCHOR, RECENCY, RECENCY, layers=2))
    assert got["by_layer"] == [["anchor", "anchor"], ["recency", "recency"]]


def test_says_what_it_cannot_tell():
    got = classify(recording_of(ANCHOR, RECENCY))
    assert "cannot be told apart" in got["limit"]
    assert not got["zones_overlap"]
    assert classify(recording_of(ANCHOR, RECENCY, context_tokens=128))["zones_overlap"]


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (45, 270)])
def test_wilson_solves_its_equation(successes, trials):
    """At each end p the observed share lies exactly z standard errors of p away, unless clipped."""
    share = successes / trials
    for end in wilson_interval(successes, trials):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(1.96 * (end * (1 - end) / trials) ** 0.5)
    assert wilson_interval(0, 0) == (0, 1)
