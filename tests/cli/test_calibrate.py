"""``kvpager calibrate``: one document or one text, several test recordings after one option, and what it refuses."""

import shutil

import pytest
from tests.stored import save_recording

from kvpager.testing.recordings import planted_recording, synthetic_recording

OPTIONS = ("--hbm", "15%", "--quick", "--jobs", "1", "--scale", "raw")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    for seed in range(3):
        save_recording(planted_recording("mass", steps=48, seed=seed), folder / f"t{seed}.zarr")
    save_recording(synthetic_recording(steps=12), folder / "short.zarr")
    return folder


@pytest.fixture
def traces(here, made):
    """Recordings of three texts, and one that is too short."""
    return shutil.copytree(made, here, dirs_exist_ok=True)


def test_the_document(well, traces):
    answer = well("calibrate", "t0.zarr", *OPTIONS, "--test", "t1.zarr", "t2.zarr", "--json")
    document = answer.document
    assert set(document) == {
        "kvpager", "command", "evidence", "machine", "versions", "seed", "train", "setting", "fit", "held_out", "uncalibrated",
    }  # fmt: skip
    assert document["evidence"] == "simulated"
    assert [one["text"] for one in document["train"]] == ["planted mass, seed 0"]
    assert {row["text"] for row in document["held_out"]["rows"]} == {"planted mass, seed 1", "planted mass, seed 2"}
    assert all({"value", "low", "high"} <= set(gain) for gain in document["held_out"]["gains"])
    assert document["setting"]["observe"] == "read"
    assert sum(document["fit"]["sweep"]["weights"]) == pytest.approx(1)
    assert document["fit"]["scales"] == []
    assert document["uncalibrated"]


def test_the_text(well, traces):
    out = well("calibrate", "t0.zarr", "--test", "t1.zarr", *OPTIONS).out
    for word in (
        "w_R",
        "w_E",
        "w_N",
        "alpha",
        "half_life",
        "sink_tokens",
        "cut_1",
        "within a",
        "Fitted: placement:",
        "blend",
        "belady",
    ):
        assert word in out, word
    assert "On 1 held-out texts" not in out
    assert "On 1 held-out text" in out


def test_without_test_nobody_judged(well, traces):
    out = well("calibrate", "t0.zarr", *OPTIONS).out
    assert "No --test recording judged it." in out


def test_tests_may_be_named_one_by_one_too(well, traces):
    document = well(
        "calibrate", "--test", "t1.zarr", "--test", "t2.zarr", "--quick", "--hbm", "15%", "--scale", "raw", "--json", "t0.zarr"
    )
    assert document.code == 0


REFUSED = [
    ([], ["nothing to fit on", "before --test"]),
    (["--test", "t1.zarr"], ["nothing to fit on"]),
    (["t0.zarr", "--test", "t0.zarr"], ["'t0.zarr'", "same text", "another one"]),
    (["t0.zarr", "t0.zarr"], ["named twice"]),
    (["t9.zarr"], ["t9.zarr"]),
    (["t0.zarr", "--test", "t9.zarr"], ["t9.zarr"]),
    (["short.zarr"], ["'short.zarr'", "12 steps", "record 43 steps"]),
    (["t0.zarr", "--hbm", "0"], ["'0'", "above 0"]),
    (["t0.zarr", "--hbm", "1%"], ["1 %", "give at least"]),
    (["t0.zarr", "--scale", "rnak"], ["'rnak'", "raw, rank"]),
    (["t0.zarr", "--horizon", "0"], ["horizon of 0"]),
    (["t0.zarr", "--selector", "topp_mas"], ["'topp_mas'"]),
    (["t0.zarr", "--selector", "dense"], ["all of", "selector"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(one[0]) or "nothing" for one in REFUSED])
def test_bad_input_is_one_line(refused, traces, arguments, words):
    refused("calibrate", *arguments, "--quick", "--jobs", "1", *([] if "--hbm" in arguments else ["--hbm", "15%"]), words=words)
