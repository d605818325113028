"""The recorder and its store, without any model: round trips, kills, full disks, Ctrl-C, damage and bad input."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from kvpager.errors import BadInput, ModelError, StorageFull, TextError, TraceError
from kvpager.traces import attention
from kvpager.traces.attention import read_recording
from kvpager.traces.recorder import read_text, record

ARRAYS = ("mass", "bound", "query_cosine", "special", "relative", "absolute")
TOKENS = list(range(140))


def assert_same_steps(read, original, steps):
    assert read.steps == steps
    assert read.blocks == -(-(original.header.context_tokens + steps) // 16)
    for name in ARRAYS:
        expected = getattr(original, name)[:steps]
        expected = expected[..., : read.blocks] if name in ("mass", "bound") else expected
        np.testing.assert_array_equal(getattr(read, name), expected, name)
    np.testing.assert_array_equal(read.prefill_mass, original.prefill_mass[..., : read.blocks])


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, decoder_class):
    out = tmp_path_factory.mktemp("pristine") / "t.zarr"
    return record(decoder_class(), TOKENS, out=out, steps=40, text_name="numbers", command="test")


@pytest.fixture
def store(tmp_path, pristine):
    return shutil.copytree(pristine, tmp_path / "t.zarr")


def test_reads_back_what_was_observed(store, decoder_class):
    original = decoder_class().recording
    read = read_recording(store)
    assert_same_steps(read, original, 40)
    assert read.header.geometry == original.header.geometry
    assert read.header.layers == original.header.layers
    assert (read.header.model, read.header.text, read.header.mode, read.header.fold) == ("replayed", "numbers", "forced", "mean")
    assert read.header.context_tokens == 100
    assert read.header.versions["nothing"] == "1"
    assert read.header.machine["cores"] >= 1
    assert read.header.recorded.endswith("+00:00")


def test_reads_the_first_steps_only_if_asked(store, decoder_class):
    assert_same_steps(read_recording(store, steps=17), decoder_class().recording, 17)
    for steps in (0, 41):
        with pytest.raises(TraceError, match="40 complete steps"):
            read_recording(store, steps=steps)


def test_forced_feeds_the_text_and_free_feeds_the_models_choice(tmp_path, decoder_class):
    forced, free = decoder_class(), decoder_class()
    record(forced, TOKENS, out=tmp_path / "a.zarr", steps=3, context_tokens=100)
    record(free, TOKENS, out=tmp_path / "b.zarr", steps=3, context_tokens=100, mode="free")
    assert forced.prefilled == free.prefilled == TOKENS[:100]
    assert forced.inputs == [100, 101, 102]
    assert free.inputs == [1000, 1001, 1002]
    hashes = {read_recording(tmp_path / name).header.tokens_sha256 for name in ("a.zarr", "b.zarr")}
    assert len(hashes) == 2


def test_progress_counts_to_the_end(tmp_path, decoder_class):
    told = []
    record(decoder_class(), TOKENS, out=tmp_path / "t.zarr", steps=40, progress=lambda *what: told.append(what))
    assert told == [("prefill", 100, 100), *[("decode", step, 40) for step in range(1, 41)]]


@pytest.mark.parametrize("last", [1, 16, 39])
def test_kill_loses_at_most_sixteen_steps(tmp_path, decoder_class, last):
    script = f"""
import importlib.util, os, signal, sys
spec = importlib.util.spec_from_file_location("replayed", {str(Path(__file__).with_name("replayed.py"))!r})
replayed = importlib.util.module_from_spec(spec); spec.loader.exec_module(replayed)
from kvpager.traces.recorder import record
die = lambda step: os.kill(os.getpid(), signal.SIGKILL) if step == {last} else None
record(replayed.ReplayedDecoder(rash=die), list(range(140)), out={str(tmp_path / "t.zarr")!r}, steps=40)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    if last < 16:
        with pytest.raises(TraceError, match="no complete step"):
            read_recording(tmp_path / "t.zarr")
    else:
        assert_same_steps(read_recording(tmp_path / "t.zarr"), decoder_class().recording, last // 16 * 16)


def test_ctrl_c_keeps_every_step_so_far(tmp_path, decoder_class):
    def interrupt(step):
        if step == 21:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(decoder_class(rash=interrupt), TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert_same_steps(read_recording(tmp_path / "t.zarr"), decoder_class().recording, 21)


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path, decoder_class):
    def interrupt(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(decoder_class(rash=interrupt), TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", [20, 40])
def test_full_disk_keeps_the_complete_chunks(tmp_path, decoder_class, monkeypatch, after):
    """The disk fills while the second chunk, or the last partial one, is being written."""
    decoder, write = decoder_class(), zarr.Array.__setitem__

    def full(array, selection, value):
        if decoder.step_number >= after and array.name.endswith("query_cosine"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(array, selection, value)

    monkeypatch.setattr(zarr.Array, "__setitem__", full)
    kept = 16 if after == 20 else 32
    with pytest.raises(StorageFull, match=f"{kept} complete steps") as caught:
        record(decoder, TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert caught.value.errno == errno.ENOSPC
    assert_same_steps(read_recording(tmp_path / "t.zarr"), decoder.recording, kept)


def test_full_disk_at_the_start_leaves_nothing(tmp_path, decoder_class, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(attention, "sync", full)
    with pytest.raises(StorageFull, match="0 complete steps"):
        record(decoder_class(), TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert list(tmp_path.iterdir()) == []


def test_other_write_errors_are_not_called_a_full_disk(tmp_path, decoder_class, monkeypatch):
    def broken(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(attention, "sync", broken)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught:
        record(decoder_class(), TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert not isinstance(caught.value, StorageFull)


def test_never_overwrites_unless_told_and_never_a_foreign_thing(store, decoder_class):
    with pytest.raises(TraceError, match="exists already"):
        record(decoder_class(), TOKENS, out=store, steps=40)
    record(decoder_class(), TOKENS, out=store, steps=8, context_tokens=100, overwrite=True)
    assert read_recording(store).steps == 8
    foreign = store.parent / "precious"
    foreign.mkdir()
    (foreign / "file").write_text("x")
    with pytest.raises(TraceError, match="not a recording"):
        record(decoder_class(), TOKENS, out=foreign, steps=8, overwrite=True)
    assert (foreign / "file").read_text() == "x"


def test_refuses_a_target_without_directory_before_the_prefill(tmp_path, decoder_class):
    decoder = decoder_class()
    with pytest.raises(TraceError, match="no directory"):
        record(decoder, TOKENS, out=tmp_path / "no" / "t.zarr", steps=40)
    assert not hasattr(decoder, "prefilled")


def chunks(array):
    return sorted(array.glob("c.*"))


def plant_nan(store):
    array = zarr.open_group(store)["mass"]
    array[33, 1, 0, 2] = np.nan


def flip_bit(store):
    chunk = chunks(store / "bound")[1]
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 4
    chunk.write_bytes(data)


def cut_chunk(store):
    chunk = chunks(store / "mass")[0]
    chunk.write_bytes(chunk.read_bytes()[:-7])


def change_attributes(store, **changes):
    metadata = json.loads((store / "zarr.json").read_text())
    metadata["attributes"] |= changes
    (store / "zarr.json").write_text(json.dumps(metadata))


def shorten(store):
    zarr.open_group(store)["mass"].resize((8, *zarr.open_group(store)["mass"].shape[1:]))


def drop_header_key(store):
    metadata = json.loads((store / "zarr.json").read_text())
    del metadata["attributes"]["header"]["geometry"]
    (store / "zarr.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (plant_nan, "NaN at step 33"),
        (flip_bit, "corrupt"),
        (cut_chunk, "corrupt"),
        (lambda store: chunks(store / "mass")[1].unlink(), "chunk at step 16 is missing"),
        (lambda store: chunks(store / "absolute")[2].unlink(), "chunk at step 32 is missing"),
        (lambda store: chunks(store / "prefill_mass")[0].unlink(), "chunk at step 0 is missing"),
        (lambda store: shutil.rmtree(store / "relative"), "'relative' is missing"),
        (lambda store: (store / "bound" / "zarr.json").write_text("{"), "'bound' is missing or damaged"),
        (lambda store: (store / "steps_done").unlink(), "truncated"),
        (lambda store: (store / "steps_done").write_text("many"), "truncated"),
        (lambda store: (store / "steps_done").write_text("0"), "no complete step"),
        (lambda store: (store / "steps_done").write_text("500"), "contradict"),
        (shorten, "contradict"),
        (lambda store: change_attributes(store, format="other"), "another program"),
        (lambda store: change_attributes(store, version=2), "format version 2"),
        (drop_header_key, "damaged header"),
        (lambda store: (store / "zarr.json").unlink(), "not a Zarr group"),
        (lambda store: (store / "zarr.json").write_text("{"), "not a Zarr group"),
        (shutil.rmtree, "does not exist"),
    ],
    ids=itertools.count(),
)
def test_damage_is_an_error_that_names_the_store(store, damage, message):
    damage(store)
    with pytest.raises(TraceError, match=message) as caught:
        read_recording(store)
    assert str(store) in str(caught.value)


def test_foreign_zarr_store_is_refused(tmp_path):
    zarr.create_group(tmp_path / "f.zarr").create_array("mass", shape=(3,), dtype="float16")
    with pytest.raises(TraceError, match="another program"):
        read_recording(tmp_path / "f.zarr")


def test_damage_above_steps_done_does_not_matter(store, decoder_class):
    (store / "steps_done").write_text("32")
    chunks(store / "mass")[2].unlink()
    assert_same_steps(read_recording(store), decoder_class().recording, 32)


def test_nan_from_the_model_stops_the_recording(tmp_path, decoder_class):
    decoder = decoder_class()
    decoder.recording.mass[18, 1] = np.nan
    with pytest.raises(ModelError, match="step 18, layer 1"):
        record(decoder, TOKENS, out=tmp_path / "t.zarr", steps=40)
    assert read_recording(tmp_path / "t.zarr").steps == 18


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        (TOKENS, {"steps": 41, "context_tokens": 100}, "has 140 tokens.*need 141.*at most 99 context tokens"),
        (TOKENS, {"steps": 140}, "has 140 tokens.*need 141.*longer text"),
        ([], {"steps": 1, "mode": "free"}, "has 0 tokens"),
    ],
)
def test_short_text_says_how_many_tokens_there_are(tmp_path, decoder_class, tokens, options, message):
    with pytest.raises(TextError, match=message):
        record(decoder_class(), tokens, out=tmp_path / "t.zarr", text_name="short", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"steps": -1}, {"steps": 3, "context_tokens": 0}, {"steps": 3, "mode": "wild"}]
)
def test_nonsense_sizes_are_bad_input(tmp_path, decoder_class, options):
    with pytest.raises(BadInput):
        record(decoder_class(), TOKENS, out=tmp_path / "t.zarr", **options)


def test_refuses_more_context_than_the_model_takes(tmp_path, decoder_class):
    with pytest.raises(ModelError, match=r"takes 140 tokens.*at most 90 context"):
        record(decoder_class(), TOKENS * 3, out=tmp_path / "t.zarr", steps=50, context_tokens=100)


@pytest.mark.parametrize(("content", "message"), [(None, "cannot be read"), (b" \n", "empty"), (b"\xff\xfe", "UTF-8")])
def test_texts_that_are_none(tmp_path, content, message):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    with pytest.raises(TextError, match=message):
        read_text(tmp_path / "text")


def test_text_is_read(tmp_path):
    (tmp_path / "text").write_text("größer")
    assert read_text(tmp_path / "text") == "größer"
