"""The replays behind the sliders are those of the command line, and are remembered."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.stored import save_recording

from kvpager.errors import BadInput, CapacityError, NoTrace
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import PARTS
from kvpager.explorer.replays import (
    PREFETCHERS,
    VOLUMES,
    by_layer,
    marked,
    placed,
    prefetched,
    room,
    row,
    scores_at_end,
    script,
)
from kvpager.explorer.sources import recording, stamp
from kvpager.replay.constants import Constants
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep
from kvpager.testing.recordings import synthetic_recording


def slow(chosen, policy):
    return sweep(Source(Path(chosen.trace)), [Case(policy, chosen.hbm, bound=False)], jobs=1)[0]


@pytest.mark.parametrize("fold", ["own", "mean", "max"])
def test_heads_that_decide_together_hit_what_the_wrapper_hits(chosen, fold):
    asked, units = script(chosen), room(chosen)
    found = row(asked, by_layer(asked, 0.3, fold, units), units)
    policy = "ema:alpha=0.3" + ("" if fold == "own" else f"+{fold}:layer")
    printed = slow(chosen, policy)
    assert found == {key: printed[key] for key in found if key != "pinned_share"} | {"pinned_share": found["pinned_share"]}


@pytest.mark.parametrize("scale", ["raw", "rank"])
def test_a_placement_is_the_policy_that_it_writes_out(chosen, scale):
    asked, units = script(chosen), room(chosen)
    constants = Constants((0.1, 0.7, 0.2), 0.4, 16.0, scale=scale, cuts=(0.2, 0.5))
    found, printed = row(asked, placed(asked, constants, units), units), slow(chosen, constants.policy)
    assert found == {key: printed[key] for key in found}
    assert placed(asked, constants, units) is placed(asked, constants, units)


def test_a_recording_that_changed_at_its_place_is_read_anew(tmp_path):
    chosen = Choices(trace=str(save_recording(synthetic_recording(context_tokens=160, steps=16), tmp_path / "t.zarr")))
    before = script(chosen)
    assert script(chosen) is before
    shutil.rmtree(chosen.trace)
    save_recording(synthetic_recording(context_tokens=320, steps=16), Path(chosen.trace))
    assert script(chosen).stream.recording is recording(chosen)
    assert script(chosen).shape[0] == before.shape[0] + 10


def test_a_file_that_is_written_anew_within_a_folder_is_noticed(tmp_path):
    (tmp_path / "part").touch()
    before, place = stamp(tmp_path), tmp_path.stat()
    assert stamp(tmp_path) == before
    os.utime(tmp_path / "part", ns=(0, 0))
    assert tmp_path.stat() == place
    assert stamp(tmp_path) != before
    assert stamp(tmp_path / "nothing") == frozenset()


def test_prefetchers_have_the_rows_of_the_command_line(chosen):
    rows = prefetched(script(chosen))
    assert len(rows) == 1 + len(PREFETCHERS) * len(VOLUMES)
    for (name, volume), found in rows.items():
        case = Case("blend", NOTE_HBM_FRACTION, prefetcher=None if name == "none" else name, prefetch_share=volume or 0.01)
        printed = sweep(Source(Path(chosen.trace)), [case], jobs=1)[0]
        assert found | {"selector": printed["selector"]} == {key: printed[key] for key in found}


def test_scores_lie_between_nothing_and_the_sum_of_the_weights(chosen):
    scores = scores_at_end(script(chosen), Constants(scale="rank"))
    assert 0 <= scores.min() < scores.max() <= 1 + 1e-9


def test_each_head_marks_its_share(chosen):
    scores, hot = marked(script(chosen), 20, 0.2, 0.25)
    assert (hot.sum(axis=0) >= 1).all()
    assert (hot.sum(axis=0) <= np.maximum(round(0.25 * len(scores)), 1)).all()
    assert (np.where(hot, scores, np.inf).min(axis=0) >= np.where(hot, -np.inf, scores).max(axis=0)).all()


@pytest.mark.parametrize("name", ["placement", "aggregate", "prefetch", "ladder"])
def test_a_part_without_its_source_says_how_to_make_one(name):
    with pytest.raises(NoTrace, match="kvpager demo"):
        PARTS[name]().screen(Choices())
    assert PARTS[name]().command(Choices()).startswith("kvpager ")


def test_what_the_recording_does_not_have_is_refused(chosen):
    with pytest.raises(BadInput, match=r"block 4000 is not in trace .* 0 to 39"):
        PARTS["aggregate"]().screen(chosen.but(block=4000))
    with pytest.raises(CapacityError, match="give at least"):
        PARTS["placement"]().screen(chosen.but(hbm=0.01))
    with pytest.raises(BadInput, match="all 0"):
        PARTS["placement"]().screen(chosen.but(w_r=0.0, w_e=0.0, w_n=0.0))


def test_weights_are_scaled_to_a_sum_of_one(chosen):
    both = [PARTS["placement"]().command(chosen.but(w_r=part, w_e=2 * part, w_n=part)) for part in (0.25, 0.5)]
    assert both[0] == both[1]
    assert "weights=[0.25,0.5,0.25]" in both[0]
