"""Parts that show a recording: the same as the report's, at the reader's choice, or a word on what is missing."""

import numpy as np
import pytest
from tests.explorer.parts.test_planned import rows

from kvpager.analysis.heads import classify
from kvpager.analysis.locality import profile
from kvpager.errors import BadInput, NoTrace, TraceError
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import PARTS
from kvpager.explorer.sources import last_of, refuse_beyond
from kvpager.report.charts.heads import shares
from kvpager.report.charts.locality import zones
from kvpager.traces.attention import read_recording


def test_locality_draws_the_report_s_panel_and_marks_the_chosen_share(chosen):
    recording = read_recording(chosen.trace)
    known = profile(recording)
    first, best = PARTS["locality"]().screen(chosen.but(hbm=0.25)).panels
    assert first.spec() == zones(known).spec()
    point = next(row for row in rows(best) if set(row) == {"share", "mass"})
    at = known["coverage"]["share"].index(0.25)
    assert point == {"share": 0.25, "mass": pytest.approx(known["coverage"]["mean"][at], rel=1e-3)}


def test_locality_says_that_mass_is_not_hits(chosen):
    words = PARTS["locality"]().screen(chosen.but(hbm=0.05)).words
    assert "dense attention reads every block, so a pool of 5.0 % of them hits 5.0 %" in words


def test_heads_draws_the_report_s_panel_and_dots_the_group_of_the_kv_head(chosen):
    recording = read_recording(chosen.trace)
    known = classify(recording)
    bars, cells = PARTS["heads"]().screen(chosen.but(layer=1, head=1)).panels
    assert bars.spec() == shares(known).spec()
    drawn = rows(cells)
    assert {(row["layer"], row["head"]) for row in drawn if "kind" not in row} == {(1, 2), (1, 3)}
    kinds = {(row["layer"], row["head"]): row["kind"] for row in drawn if "kind" in row}
    assert kinds == {(layer, head): kind for layer, row in enumerate(known["by_layer"]) for head, kind in enumerate(row)}


def test_sliders_end_where_the_recording_does(chosen):
    shape = np.asarray(read_recording(chosen.trace).mass).shape
    last = last_of(chosen)
    assert (last["layer"], last["head"]) == (shape[1] - 1, shape[2] - 1)
    assert last["block"] < shape[3]
    for part in ("heads", "ema"):
        for name in ("layer", "head"):
            assert PARTS[part]().slider(name, chosen).high == last[name]


@pytest.mark.parametrize("name", ["layer", "head", "block"])
def test_what_the_recording_does_not_have_is_refused_by_name_and_range(chosen, name):
    refuse_beyond(chosen.but(**{name: last_of(chosen)[name]}), name)
    beyond = chosen.but(**{name: last_of(chosen)[name] + 1})
    with pytest.raises(BadInput, match=rf"{name} \d+ is not in trace '.*attention.zarr': it has 0 to {last_of(chosen)[name]}"):
        PARTS["ema"]().screen(beyond)


@pytest.mark.parametrize("part", ["locality", "heads"])
def test_without_a_recording_the_reader_learns_how_to_make_one(part, tmp_path):
    with pytest.raises(NoTrace, match="kvpager record --text FILE"):
        PARTS[part]().screen(Choices())
    with pytest.raises(TraceError, match="missing"):
        PARTS[part]().screen(Choices(trace=str(tmp_path / "missing.zarr")))
