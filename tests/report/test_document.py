"""What is refused before anything is drawn, and in what words."""

import pytest

from kvpager.errors import BadInput
from kvpager.report.document import check_document, ladders, percent


def change(document, path, value):
    """Set the entry at a dotted path; None deletes it."""
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        document = document[part]
    if value is None:
        del document[last]
    else:
        document[last] = value


def test_whole_document_passes(document):
    assert check_document(document) is document


@pytest.mark.parametrize("section", ["ladder", "curves", "access_definitions", "locality", "head_types", "heatmap"])
def test_one_section_is_enough(document, section):
    check_document({section: document[section]})


@pytest.mark.parametrize("wrong", [None, [], "text", 3])
def test_only_an_object_is_a_document(wrong):
    with pytest.raises(BadInput, match="JSON object"):
        check_document(wrong)


def test_nothing_to_report_is_said():
    with pytest.raises(BadInput, match="holds none of"):
        check_document({"rows": [], "claims": []})


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("ladder.rungs", [], r"ladder\.rungs of the document is empty"),
        ("ladder.rungs", {}, r"ladder\.rungs .* is dict, not a list"),
        ("ladder.rungs.1", "x", r"ladder\.rungs\[1\] .* is str, not an object"),
        ("ladder.rungs.2.bound", None, r"ladder\.rungs\[2\] .* lacks bound"),
        ("ladder.rungs.2.block_hit_ratio", 1.2, r"ladder\.rungs\[2\]\.block_hit_ratio .* 1\.2, not a ratio"),
        ("ladder.others.0.rungs.4.mass_hit_ratio", -0.1, r"ladder\.others\[0\]\.rungs\[4\]\.mass_hit_ratio"),
        ("curves.3.p5_head_mass", float("nan"), r"curves\[3\]\.p5_head_mass .* nan"),
        ("curves.3.block_hit_ratio", "0.5", r"curves\[3\]\.block_hit_ratio .* '0\.5'"),
        ("curves.0.block_hit_ratio", True, r"curves\[0\]\.block_hit_ratio"),
        ("curves.0.evidence", "proven", r"curves\[0\]\.evidence .* 'proven', not one of illustrative"),
        ("access_definitions.0.value", None, r"access_definitions\[0\] .* lacks value"),
        ("locality.coverage", None, "locality of the document lacks coverage"),
        ("head_types.by_layer", None, "head_types of the document lacks by_layer"),
        ("heatmap.mass.0", [0.1], "not two full grids"),
        ("heatmap.resident", [[]], "not two full grids"),
    ],
)
def test_damage_is_named_by_place(document, path, value, says):
    change(document, path, value)
    with pytest.raises(BadInput, match=says):
        check_document(document)


def test_main_ladder_comes_first(document):
    assert [(one["pool"], one["hbm_fraction"]) for one in ladders(document)][:2] == [("global", 0.0684), ("global", 0.054)]
    assert len(ladders(document)) == 8
    assert ladders({}) == []


def test_percent():
    assert percent(0.0684, 2) == "6.84 %"
    assert percent(None) == "–"
