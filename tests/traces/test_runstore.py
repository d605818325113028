"""The run recording on disk: what was written is read, whole or not at all."""

import errno
import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import zarr
from tests.toyrun import ToyRun, plain

from kvpager.errors import StorageFull, TraceError
from kvpager.replay.run import replay_run
from kvpager.traces import runstore
from kvpager.traces.attention import read_recording
from kvpager.traces.run import COLUMNS, Event, Packer, unpack
from kvpager.traces.runstore import RunWriter, read_run


@pytest.fixture(scope="module")
def run():
    """A run in which calls and moves failed too."""
    return next(
        run
        for seed in range(20)
        if (run := ToyRun(seed, "ema", 40, dram=5, prefetcher="previous", lockstep=False, slow=True, faults=True).run())
        .recording.disturbances > 3
    )  # fmt: skip


def write(run, path, **options):
    with RunWriter(path, run.header, **options) as writer:
        for event in run.events:
            writer.append(event)
        writer.close(run.document)
    return path


@pytest.fixture
def stored(run, tmp_path):
    """In several segments."""
    return write(run, tmp_path / "run.zarr", segment_numbers=1500)


def fields(event):
    """All that is stored of a call, as values."""
    values = event._replace(grant=None, moves=(), failed=())
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values if not isinstance(value, tuple)]


def test_what_was_written_is_read(run, stored):
    found = read_run(stored)
    assert int((stored / "segments_done").read_text()) >= 3
    assert found.header == run.header
    assert found.counts == run.document
    assert len(found) == len(run.events)
    for before, after in zip(run.events, found.events(), strict=True):
        assert fields(before) == fields(after)
        assert [move._replace(units=move.units.tolist()) for move in before.moves] == [
            move._replace(units=move.units.tolist()) for move in after.moves
        ]
        assert [(move, at.tolist()) for move, at in before.failed] == [(move, at.tolist()) for move, at in after.failed]
        assert (before.seen is None) == (after.seen is None)
        if before.seen is not None:
            assert before.seen.tick == after.seen.tick
            assert np.array_equal(before.seen.units, after.seen.units)
            assert np.array_equal(before.seen.mass, after.seen.mass)


def test_it_replays_from_disk(run, stored):
    told = []
    found = replay_run(read_run(stored), sink=told.append)
    assert plain(told) == plain(run.events)
    assert found.moves_identical == run.tally.counts.moves


def test_all_kv_is_the_most_units_alive_at_once(run):
    table, most = run.recording.units, 0
    alive = 0
    from kvpager.core import UnitTable
    from kvpager.traces.run import OF_TABLE, call_table

    again = UnitTable(*run.header.table_shape)
    for event in run.events:
        if event.kind in OF_TABLE:
            call_table(again, event)
            alive = int(np.count_nonzero(again.refs[: again.size]))
            most = max(most, alive)
    assert table == most


def test_a_writer_holds_no_more_than_a_segment(run, tmp_path):
    writer = RunWriter(tmp_path / "run.zarr", run.header, segment_numbers=500)
    for event in run.events:
        writer.append(event)
        assert writer._packer.size < 500


def test_a_writer_keeps_copies(run, tmp_path):
    units = np.array([1, 2, 3], np.int32)
    with RunWriter(tmp_path / "run.zarr", run.header) as writer:
        writer.append(Event("release", units=units))
        units[:] = 9
    (event,) = read_run(tmp_path / "run.zarr").events()
    assert event.units.tolist() == [1, 2, 3]


def test_an_interrupted_run_stays_readable_up_to_its_last_segment(run, tmp_path):
    writer = RunWriter(tmp_path / "run.zarr", run.header, segment_numbers=2000)
    for event in run.events[: len(run.events) * 2 // 3]:
        writer.append(event)
    found = read_run(tmp_path / "run.zarr")  # as after a kill: nothing was closed
    assert found.counts is None
    assert 0 < len(found) < len(run.events) * 2 // 3
    assert plain([event._replace(grant=None) for event in run.events[: len(found)]]) == plain(found.events())
    assert replay_run(found).moves_identical > 0


def test_a_full_disk_keeps_the_complete_segments(run, tmp_path, monkeypatch):
    setitem, written = zarr.Array.__setitem__, []

    def full(array, key, value):
        written.append(key)
        if len(written) > 25:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        setitem(array, key, value)

    monkeypatch.setattr(zarr.Array, "__setitem__", full)
    with pytest.raises(StorageFull, match=r"after [12] segments, which stay readable") as caught:
        write(run, tmp_path / "run.zarr", segment_numbers=2000)
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    found = read_run(tmp_path / "run.zarr")
    assert plain([event._replace(grant=None) for event in run.events[: len(found)]]) == plain(found.events())


def test_a_full_disk_at_the_start_leaves_nothing(run, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runstore, "sync", full)
    with pytest.raises(StorageFull, match="after 0 segments"):
        RunWriter(tmp_path / "run.zarr", run.header)
    assert list(tmp_path.iterdir()) == []


def test_a_recording_without_a_call_is_removed(run, tmp_path):
    RunWriter(tmp_path / "run.zarr", run.header).close({})
    assert list(tmp_path.iterdir()) == []


def test_never_overwrites_unless_told_and_never_a_foreign_thing(run, stored):
    with pytest.raises(TraceError, match="exists already"):
        RunWriter(stored, run.header)
    RunWriter(stored, run.header, overwrite=True)
    (stored / "segments_done").unlink()
    with pytest.raises(TraceError, match="not a recording"):
        RunWriter(stored, run.header, overwrite=True)


# ── what is no whole run recording ───────────────────────────────────────────────────────────────────


def attributes(path, **changes):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"] |= changes
    (path / "zarr.json").write_text(json.dumps(document))


def header_lacks(path, name):
    header = json.loads((path / "zarr.json").read_text())["attributes"]["header"]
    del header[name]
    attributes(path, header=header)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def contradict(path):
    """A count that its own checksum fits, but not the other arrays."""
    zarr.open_group(path)["000000/events"][3, 6] += 1


DAMAGES = {
    "does not exist": shutil.rmtree,
    "not a Zarr group": lambda path: (path / "zarr.json").unlink(),
    "another program": lambda path: attributes(path, format="else"),
    "format version 99": lambda path: attributes(path, version=99),
    "damaged header": lambda path: header_lacks(path, "geometry"),
    "header .*budget": lambda path: header_lacks(path, "budget"),
    "header .*policy": lambda path: header_lacks(path, "policy"),
    "'segments_done' is missing": lambda path: (path / "segments_done").unlink(),
    "truncated: its file": lambda path: (path / "segments_done").write_text("x"),
    "no complete segment": lambda path: (path / "segments_done").write_text("0"),
    "segment 1: array '000001/events' is missing": lambda path: shutil.rmtree(path / "000001"),
    "'000002/mass' is missing": lambda path: shutil.rmtree(path / "000002" / "mass"),
    "data of '000000/units' is missing": lambda path: (path / "000000" / "units" / "c.0").unlink(),
    "'000001/move_units' cannot be decoded": lambda path: flip(path / "000001" / "move_units" / "c.0"),
    "segment 0: its calls and its units, asks|contradict": contradict,
    "damaged 'counts.json'": lambda path: (path / "counts.json").write_text("{"),
}


@pytest.mark.parametrize(("words", "damage"), DAMAGES.items(), ids=DAMAGES)
def test_what_is_no_whole_run_recording_is_refused(stored, words, damage):
    damage(stored)
    with pytest.raises(TraceError, match=words):
        read_run(stored)


def test_the_two_kinds_of_recordings_are_not_mixed_up(stored):
    with pytest.raises(TraceError, match="another program"):
        read_recording(stored)


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_wrong_lengths_are_noticed(run, name):
    packer = Packer()
    for event in run.events:
        packer.add(event)
    columns = packer.take()
    list(unpack(columns))
    assert len(columns[name]), "or this test says nothing"
    with pytest.raises(ValueError, match="contradict"):
        next(unpack(columns | {name: columns[name][:-1]}))


def test_the_table_of_a_layer_run_is_the_runs(run):
    layer = replace(run.header, granularity="layer", unit_bytes=2 * run.header.unit_bytes)
    assert run.header.table_shape == (2, 2, 4, 64, "head")
    assert layer.table_shape == (2, 2, 4, 64, "layer")
