"""oracleGeneral both ways, and libCacheSim reads what we write."""

import libcachesim
import numpy as np
import pytest
from hypothesis import given
from libcachesim import libcachesim_python
from tests.made import first_seen, split, traces

from kvpager.errors import BadInput, TraceError
from kvpager.testing.requests import agent_requests, document_requests, session_requests
from kvpager.traces.formats import load_requests
from kvpager.traces.formats.oracle_general import RECORD, write_oracle_general


@given(traces().filter(lambda trace: len(trace.blocks)))
def test_accesses_survive_a_round_trip(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("oracle") / "t.oracleGeneral"
    write_oracle_general(path, trace)
    again = load_requests(path)
    assert (again.blocks == trace.blocks).all()
    assert (again.time_s == np.floor(np.repeat(trace.time_s, np.diff(trace.starts)))).all()
    assert (np.diff(again.starts) == 1).all()


def test_next_accesses_are_those_of_libcachesims_own_converter(tmp_path):
    ids = np.random.default_rng(0).integers(1, 40, 300)
    (tmp_path / "t.csv").write_text("".join(f"{row},{value},1\n" for row, value in enumerate(ids)))
    settings = libcachesim.ReaderInitParam(has_header=False, delimiter=",", obj_id_is_num_set=True, has_header_set=True)
    settings.time_field, settings.obj_id_field, settings.obj_size_field = 1, 2, 3
    reader = libcachesim.TraceReader(str(tmp_path / "t.csv"), libcachesim.TraceType.CSV_TRACE, settings)
    libcachesim_python.convert_to_oracleGeneral(reader._reader, str(tmp_path / "theirs.oracleGeneral"))
    theirs = np.fromfile(tmp_path / "theirs.oracleGeneral", RECORD)
    write_oracle_general(tmp_path / "ours.oracleGeneral", load_requests(tmp_path / "theirs.oracleGeneral"))
    ours = np.fromfile(tmp_path / "ours.oracleGeneral", RECORD)
    assert (theirs["id"] == ids).all()
    assert (ours["next"] == theirs["next"]).all()
    assert (ours["time_s"] == theirs["time_s"]).all()
    assert (ours["id"] == first_seen(ids)).all()


@pytest.mark.parametrize("make", [session_requests, document_requests, agent_requests])
def test_libcachesim_counts_what_we_count(tmp_path, make):
    trace, path = make(), tmp_path / "t.oracleGeneral"
    write_oracle_general(path, trace)
    settings = libcachesim.ReaderInitParam(ignore_obj_size=True)
    reader = libcachesim.TraceReader(str(path), libcachesim.TraceType.ORACLE_GENERAL_TRACE, settings)
    misses, _ = libcachesim.LRU(cache_size=10**6, hashpower=16).process_trace(reader)
    assert round(misses * len(trace.blocks)) == trace.distinct


def test_sizes_and_ids_of_any_value_are_read(tmp_path):
    records = np.array([(7, 2**64 - 1, 100, -1), (7, 0, 4096, -1), (9, 2**64 - 1, 100, -1)], RECORD)
    records.tofile(tmp_path / "x")
    trace = load_requests(tmp_path / "x", "oracle-general:block_size=32")
    assert trace.blocks.tolist() == [0, 1, 0]
    assert trace.input_tokens.tolist() == [32, 32, 32]
    assert trace.source["sizes"] == "ignored"


def test_a_file_cut_short_is_refused(tmp_path):
    (tmp_path / "x.oracleGeneral").write_bytes(bytes(50))
    with pytest.raises(TraceError, match=r"has 50 bytes, no multiple of the 24 of a record: it is cut short"):
        load_requests(tmp_path / "x.oracleGeneral")


def test_wrong_records_are_counted_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("kvpager.traces.formats.oracle_general.PIECE_BLOCKS", 2)
    records = np.array([(5, 1, 1, -1), (6, 2, 1, -1), (4, 3, 1, -1), (6, 4, 0, -1), (6, 1, 1, -1)], RECORD)
    records.tofile(tmp_path / "x.oracleGeneral")
    with pytest.raises(TraceError, match=r"record 3: expected a time that does not go backwards; mend"):
        load_requests(tmp_path / "x.oracleGeneral")
    with pytest.raises(TraceError, match=r"record 4: expected a size of at least 1 byte; mend"):
        load_requests(tmp_path / "x.oracleGeneral", skip_bad=1)
    trace = load_requests(tmp_path / "x.oracleGeneral", skip_bad=2)
    assert trace.blocks.tolist() == [0, 1, 0]
    assert trace.source["skipped"]["count"] == 2


def test_what_it_cannot_hold_is_refused(tmp_path):
    trace, path = session_requests(5), tmp_path / "t"
    *_, piece = split(trace, 3)
    with pytest.raises(BadInput, match="is a piece of a trace"):
        write_oracle_general(path, piece)
    with pytest.raises(BadInput, match="sizes of 1 to 2"):
        write_oracle_general(path, trace, block_bytes=0)
    with pytest.raises(BadInput, match="cannot be written"):
        write_oracle_general(tmp_path / "no" / "t", trace)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInput, match="block_size is 0"):
        load_requests(path, "oracle-general:block_size=0")
