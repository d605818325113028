"""``kvpager record`` on a tiny random model: the good path, what it refuses, a full disk, Ctrl-C."""

import errno
import functools
import os
import re
import shutil
import signal
import subprocess

import orjson
import pytest

from kvpager.traces.attention import read_recording

RECORD = ("record", "--out", "new.zarr", "--text", "words.txt")


@pytest.fixture
def changed(here, tiny):
    """A copy of the tiny model as directory ``model``, free to be damaged."""
    return shutil.copytree(tiny, here / "model")


def test_record_then_replay(well, words, tiny):
    answer = well(*RECORD, "--model", tiny, "--steps", "20", "--context", "400", "--json")
    assert answer.document["evidence"] == "measured"
    trace = answer.document["trace"]
    assert {key: trace[key] for key in ("path", "text", "mode", "context_tokens", "steps", "blocks", "layers", "kv_heads")} == {
        "path": "new.zarr", "text": "words.txt", "mode": "forced", "context_tokens": 400, "steps": 20, "blocks": 27,
        "layers": 4, "kv_heads": 2,
    }  # fmt: skip
    shown = answer.err.splitlines()
    assert {line.partition(":")[0] for line in shown} == {"prefill", "decode"}
    assert shown[-1] == "decode: 20/20"
    header = read_recording("new.zarr").header
    assert header.command == f"kvpager {' '.join(RECORD)} --model {tiny.name} --steps 20 --context 400 --json"
    rows = well("replay", "new.zarr", "--policy", "lru,belady", "--capacity", "25%", "--jobs", "1", "--json").document["rows"]
    assert rows[0]["block_hits"] <= rows[1]["block_hits"]


def test_record_in_words_free_running_and_all_the_text(well, words, tiny):
    answer = well(*RECORD, "--model", tiny, "--steps", "4", "--mode", "free")
    assert answer.out == "new.zarr: 4 steps after 450 tokens, 29 blocks\n"


def test_overwrites_only_when_told_and_only_recordings(well, refused, words, tiny):
    well(*RECORD, "--model", tiny, "--steps", "4")
    refused(*RECORD, "--model", tiny, "--steps", "5", words=["'new.zarr'", "exists already", "another name"])
    assert read_recording("new.zarr").steps == 4
    well(*RECORD, "--model", tiny, "--steps", "5", "--overwrite")
    assert read_recording("new.zarr").steps == 5
    refused("record", "--text", "words.txt", "-o", "words.txt", "--overwrite", words=["'words.txt'", "not a recording"])


TEXTS = {
    "missing": (None, ["'text'", "No such file", "give a text file"]),
    "empty": (b" \n", ["'text'", "empty", "give a text file"]),
    "binary": (b"one \xff\xfe\x00", ["'text'", "not UTF-8", "byte 4", "convert"]),
}


@pytest.mark.parametrize(("content", "words"), TEXTS.values(), ids=TEXTS)
def test_texts(refused, here, content, words):
    if content is not None:
        (here / "text").write_bytes(content)
    refused("record", "--text", "text", "--out", "new.zarr", words=words)


AMOUNTS = [
    (["--steps", "451"], ["'words.txt'", "450 tokens", "451 steps", "fewer steps", "longer text"]),
    (["--steps", "100", "--context", "400"], ["'words.txt'", "450 tokens", "at most 350 context tokens"]),
    (["--steps", "0"], ["0 steps", "at least 1"]),
    (["--steps", "-3"], ["-3 steps", "at least 1"]),
    (["--context", "0"], ["'0'", "128K"]),
    (["--context", "many"], ["'many'", "128K"]),
    (["--mode", "fre"], ["'fre'", "forced or free"]),
]


@pytest.mark.parametrize(("options", "expected"), AMOUNTS, ids=[" ".join(case[0]) for case in AMOUNTS])
def test_amounts(refused, words, tiny, options, expected):
    refused(*RECORD, "--model", tiny, *options, words=expected)


def test_more_than_the_model_takes(refused, here, tiny):
    (here / "words.txt").write_text("one " * 9000)
    refused(*RECORD, "--model", tiny, "--steps", "200", words=["takes 8192 tokens", "at most 7992 context tokens"])
    refused(*RECORD, "--model", tiny, "--steps", "8500", words=["takes 8192 tokens", "fewer than 8192 steps"])


@pytest.mark.parametrize("name", ["smolm2", "nobody/nothing", "empty"])
def test_unknown_models(refused, words, here, name):
    (here / "empty").mkdir()
    refused(*RECORD, "--model", name, words=[f"model '{name}'", "'smollm2'", "a directory", "hub id"])


def test_unknown_families(refused, words, changed):
    (changed / "config.json").write_text('{"model_type": "gpt2"}')
    refused(*RECORD, "--model", "model", words=["'model'", "'gpt2'", "Known families", "llama"])


def damage(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


UP = "model.layers.2.mlp.up_proj.weight"


def test_weights_with_nan(refused, words, changed):
    damage(changed, lambda weights: weights[UP][3].fill_(float("nan")))
    refused(*RECORD, "--model", "model", words=["'model'", UP, "NaN", "fetch them again"])


def test_weights_that_lack_a_tensor_are_not_made_up(refused, words, changed):
    damage(changed, lambda weights: weights.pop(UP))
    refused(*RECORD, "--model", "model", words=["'model'", UP, "fetch them again"])


def test_weights_cut_short(refused, words, changed):
    file = changed / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100_000])
    refused(*RECORD, "--model", "model", words=["'model'", "cannot be loaded", "a directory with"])


def test_no_place_to_write_is_found_before_the_model_is_loaded(refused, words):
    refused("record", "--text", "words.txt", "-o", "no/new.zarr", words=["'no/new.zarr'", "no directory 'no'", "create it"])


def full_after(monkeypatch, syncs):
    """Let the disk be full from so many syncs on."""
    left = iter(range(syncs))
    fsync = os.fsync

    def sync(descriptor):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)


def test_full_disk_from_the_start_leaves_nothing(refused, words, tiny, monkeypatch):
    full_after(monkeypatch, 3)
    refused(*RECORD, "--model", tiny, "--steps", "40", words=["the disk is full", "'new.zarr'", "0 complete steps", "free space"])


def test_full_disk_later_keeps_the_complete_steps(kvpager, well, words, tiny, monkeypatch):
    full_after(monkeypatch, 60)
    answer = kvpager(*RECORD, "--model", tiny, "--steps", "200")
    assert (answer.code, answer.out, len(answer.complaints)) == (2, "", 1)
    (line,) = answer.complaints
    steps = int(
        re.fullmatch(r"kvpager: the disk is full: recording 'new.zarr' stops with (\d+) complete steps.*; free .*", line)[1]
    )
    assert steps in (16, 32, 48, 64, 80)
    monkeypatch.undo()
    assert read_recording(words.parent / "new.zarr").steps == steps


def test_ctrl_c_keeps_what_was_recorded(here, tiny, entry):
    (here / "words.txt").write_text("one two three " * 2000)
    command = [*entry, *RECORD, "--model", str(tiny), "--context", "300", "--steps", "5000"]
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=heed, **pipes) as process:
        while "decode: 500/" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), err
    rest = [line for line in err.splitlines() if not line.startswith("decode: ")]
    assert len(rest) == 1, err
    steps = int(
        re.fullmatch(r"kvpager: interrupted: recording 'new.zarr' keeps its (\d+) complete steps; record again.*", rest[0])[1]
    )
    assert steps >= 500
    assert read_recording("new.zarr").steps == steps
    command = [*entry, "replay", "new.zarr", "--capacity", "50%", "--jobs", "1", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert orjson.loads(done.stdout)["trace"]["steps"] == steps


def test_ctrl_c_before_the_first_step_leaves_nothing(kvpager, here, words, tiny, monkeypatch):
    from kvpager.live.transformers import RecordingDecoder

    def interrupt(self, token):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordingDecoder, "step", interrupt)
    answer = kvpager(*RECORD, "--model", tiny, "--steps", "40")
    assert answer.code == 2
    assert answer.complaints == [
        "kvpager: interrupted: recording 'new.zarr' had no complete step and is removed; record again for all 40"
    ]
    assert [path.name for path in here.iterdir()] == ["words.txt"]
