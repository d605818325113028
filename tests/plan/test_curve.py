"""Curves of hits from documents: what was written is read again, and what is no curve is refused by name."""

import json

import pytest

from kvpager.errors import BadInput
from kvpager.plan.curve import HitCurve, read_curve

SMALL = HitCurve((0.05, 0.1), (0.4, 0.7), 0.05, "replay of a")
LARGE = HitCurve((0.05, 0.2), (0.3, 0.6), 0.2, "replay of b")


def written(path, *curves, **changes):
    path.write_text(json.dumps({"curves": [curve.to_json() | changes for curve in curves]}))
    return path


def test_what_was_written_is_read_again(tmp_path):
    path = written(tmp_path / "two.json", SMALL, LARGE)
    found = read_curve(path, 0.2)
    assert (found.hbm_shares, found.byte_hit_ratios, found.read_fraction) == ((0.05, 0.2), (0.3, 0.6), 0.2)
    assert found.source == "two.json: replay of b"
    assert read_curve(written(path, found)).source == found.source
    assert found.points == "0.300 at 5 %, 0.600 at 20 %"


@pytest.mark.parametrize(
    ("text", "read", "words"),
    [
        ("{", None, "cannot be read"),
        ("[]", None, "has no curves"),
        ('{"curves": []}', None, "has no curves"),
        ('{"curves": [{"read_fraction": 0.1}]}', None, "a curve needs hbm_shares"),
        (json.dumps({"curves": [SMALL.to_json() | {"byte_hit_ratios": "no"}]}), None, "a curve needs hbm_shares"),
        (json.dumps({"curves": [SMALL.to_json() | {"byte_hit_ratios": [0.4, 1.7]}]}), None, "must lie in"),
        (json.dumps({"curves": [SMALL.to_json()]}), 0.1, "reads of 5 %, not 10 %"),
        (json.dumps({"curves": [SMALL.to_json(), LARGE.to_json()]}), None, "reads of 5 %, 20 %: choose one by --read"),
    ],
)
def test_what_is_no_curve_is_refused(tmp_path, text, read, words):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        read_curve(path, read)
    with pytest.raises(BadInput, match="cannot be read"):
        read_curve(tmp_path / "missing.json")
