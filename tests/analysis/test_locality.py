"""Locality against an obvious slow reference, and against recordings whose answer is known by construction."""

from dataclasses import replace

import numpy as np
import pytest

from kvpager.analysis.locality import COVERAGE_SHARES, TARGETS, blocks_needed, profile
from kvpager.errors import TraceError
from kvpager.testing.recordings import synthetic_recording


def slow_needed(row, target):
    """Take blocks one by one, heaviest first, until the share is reached."""
    total, held, taken = float(sum(row)), 0.0, set()
    for block in sorted(range(len(row)), key=lambda b: (-row[b], -b)):
        taken.add(block)
        held += float(row[block])
        if held >= target * total * (1 - 1e-12):
            break
    return taken


def slow_coverage(row, share):
    """Mass of the best `share` of the blocks, the last one in part."""
    best = sorted((float(m) for m in row), reverse=True)
    whole = int(share * len(best))
    part = share * len(best) - whole
    return (sum(best[:whole]) + (part * best[whole] if part and whole < len(best) else 0.0)) / sum(best)


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_slow_reference(seed):
    recording = synthetic_recording(num_layers=3, num_kv_heads=2, context_tokens=250, steps=9, seed=seed)
    got = profile(recording, first_step=2)
    steps = range(2, 9)
    rows = {
        (t, layer, head): recording.mass[t, layer, head, : recording.open_block(t) + 1].astype(float)
        for t in steps for layer in range(3) for head in range(2)
    }  # fmt: skip
    for target in TARGETS:
        sets = {key: slow_needed(row, target) for key, row in rows.items()}
        need = got["blocks_needed"][f"{target:g}"]
        sizes = [len(chosen) for chosen in sets.values()]
        assert need["mean"] == pytest.approx(np.mean(sizes), abs=1e-4)
        assert need["median"] == pytest.approx(np.median(sizes), abs=1e-4)
        assert need["p90"] == pytest.approx(np.percentile(sizes, 90), abs=1e-4)
        assert need["mean_share"] == pytest.approx(np.mean([len(c) / len(rows[k]) for k, c in sets.items()]), abs=1e-4)
        of_layer = [len(sets[t, n, 0] | sets[t, n, 1]) / len(rows[t, n, 0]) for t in steps for n in range(3)]
        assert need["layer_union_share"] == pytest.approx(np.mean(of_layer), abs=1e-4)
        of_all = [len(set.union(*(sets[t, n, h] for n in range(3) for h in range(2)))) / len(rows[t, 0, 0]) for t in steps]
        assert need["all_union_share"] == pytest.approx(np.mean(of_all), abs=1e-4)
    for share, mean in zip(COVERAGE_SHARES, got["coverage"]["mean"], strict=True):
        assert mean == pytest.approx(np.mean([slow_coverage(row, share) for row in rows.values()]), abs=1e-3), share


def test_known_distribution():
    """One head: 30 % on the first token, 60 % on the newest tenth, the rest between."""
    recording = synthetic_recording(num_layers=1, num_kv_heads=1, group=2, context_tokens=400, steps=4)
    special = np.zeros((4, 1, 2, 5), np.float16)
    special[..., 0, :] = [0.25, 0.25, 0.25, 0.5, 0.5]
    special[..., 1, :] = [0.0, 0.0, 0.125, 0.875, 0.875]
    got = profile(replace(recording, special=special))
    assert got["newest_10_percent"] == 0.6875
    assert got["first_4"] == 0.125
    assert got["newest_10_percent_without_first_4"] == pytest.approx(0.6875 / 0.875, abs=1e-4)
    assert got["q_heads_newest_10_at_least_80"] == 0.5
    assert got["by_layer"][0]["last_200"] == got["last_200"] == 0.6875


def test_bins_add_up():
    got = profile(synthetic_recording(context_tokens=700, steps=5))
    assert sum(got["relative"]["mean"]) == pytest.approx(1, abs=0.01)
    assert sum(got["absolute"]["mean"]) == pytest.approx(1, abs=0.01)
    assert len(got["relative"]["edges"]) == len(got["relative"]["mean"]) + 1
    assert got["coverage"]["mean"][-1] == 1
    assert got["coverage"]["mean"] == sorted(got["coverage"]["mean"])


def test_blocks_that_do_not_exist_yet_do_not_count():
    """The share is of the blocks that exist at the step, not of those at the end."""
    recording = synthetic_recording(num_layers=1, num_kv_heads=1, context_tokens=64, steps=32)
    mass = np.zeros_like(recording.mass)
    for step in range(32):
        mass[step, ..., : recording.open_block(step) + 1] = 1 / (recording.open_block(step) + 1)
    need = profile(replace(recording, mass=mass))["blocks_needed"]["0.99"]
    assert need["mean_share"] == 1


def test_equal_masses_take_the_newer_block():
    counts, chosen = blocks_needed(np.array([[0.25, 0.25, 0.25, 0.25]]), 0.5)
    assert counts.tolist() == [2]
    assert chosen.tolist() == [[False, False, True, True]]


def test_evidence_needs_provenance():
    recording = synthetic_recording(context_tokens=64, steps=2)
    assert profile(recording)["evidence"] == "illustrative"
    source = {"machine": {"cpu": "x"}, "versions": {"torch": "2"}, "recorded": "2026-01-01", "command": "kvpager record"}
    header = replace(recording.header, **source)
    assert profile(replace(recording, header=header))["evidence"] == "measured"


@pytest.mark.parametrize("change", [{"special": None}, {"relative": None}, {"absolute": None}])
def test_recording_without_token_masses_is_refused(change):
    with pytest.raises(TraceError, match="record it again"):
        profile(replace(synthetic_recording(context_tokens=64, steps=2), **change))


@pytest.mark.parametrize("first_step", [-1, 2, 99])
def test_no_step_left_is_refused(first_step):
    with pytest.raises(TraceError, match="2 steps"):
        profile(synthetic_recording(context_tokens=64, steps=2), first_step)
