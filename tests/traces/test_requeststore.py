"""The Parquet file: what was written is read, whole, piece by piece, or not at all."""

import contextlib
import errno
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.made import same, split, traces

from kvpager.errors import CapacityError, StorageFull, TraceError
from kvpager.testing.requests import agent_requests, document_requests, session_requests
from kvpager.traces import requeststore, room
from kvpager.traces.requests import gather
from kvpager.traces.requeststore import iter_requests, read_requests, write_requests


def restate(file, change):
    """Change what a file says of itself."""
    about = json.loads(pq.read_metadata(file).metadata[b"kvpager"]) | change
    pq.write_table(pq.read_table(file).replace_schema_metadata({"kvpager": json.dumps(about)}), file)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "t.parquet"
    write_requests(path, session_requests(20))
    return path


@given(trace=traces() | traces(blocks=False), rows=st.integers(1, 4), batch=st.integers(1, 4))
def test_round_trip_whole_and_in_pieces(tmp_path_factory, trace, rows, batch):
    path = tmp_path_factory.mktemp("round") / "t.parquet"
    write_requests(path, split(trace, rows))
    assert same(read_requests(path), trace)
    pieces = list(iter_requests(path, batch))
    assert all(len(piece) <= batch for piece in pieces)
    assert same(gather(pieces), trace)


def test_a_trace_streams_in_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(requeststore, "_GROUP_BLOCKS", 500)
    trace, path = agent_requests(), tmp_path / "t.parquet"
    write_requests(path, trace)
    groups = pq.ParquetFile(path).num_row_groups
    assert groups > 20
    pieces = list(iter_requests(path))
    assert len(pieces) == groups
    assert max(len(piece.blocks) for piece in pieces) <= 500
    assert same(gather(pieces), trace)
    assert same(read_requests(path), trace)


def test_other_tools_can_read_it(file):
    table = pq.read_table(file)
    trace = read_requests(file)
    assert table.column("blocks").to_pylist()[3] == trace.blocks[trace.starts[3] : trace.starts[4]].tolist()
    assert json.loads(pq.read_metadata(file).metadata[b"kvpager"])["block_size"] == 16


def test_an_existing_file_is_replaced_only_on_request(file):
    with pytest.raises(TraceError, match="exists already"):
        write_requests(file, document_requests())
    write_requests(file, document_requests(), overwrite=True)
    assert same(read_requests(file), document_requests())


def test_what_goes_wrong_leaves_nothing_behind(tmp_path):
    path = tmp_path / "t.parquet"
    trace = session_requests(5)

    def broken():
        yield next(iter(split(trace, 4)))
        raise TraceError("the source ends")

    for pieces in (broken(), [replace(trace, blocks=trace.blocks + np.int32(1))], []):
        with pytest.raises(TraceError):
            write_requests(path, pieces)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(file):
    before = file.read_bytes()
    with pytest.raises(TraceError):
        write_requests(file, [], overwrite=True)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["t.parquet"]


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(requeststore, "sync", full)
    with pytest.raises(StorageFull, match=r"disk is full: request trace .* is not written; free space"):
        write_requests(tmp_path / "t.parquet", session_requests(5))
    assert list(tmp_path.iterdir()) == []


def test_no_folder_to_write_to(tmp_path):
    with pytest.raises(TraceError, match=r"cannot be written .*choose another place"):
        write_requests(tmp_path / "none" / "t.parquet", session_requests(5))


@pytest.mark.parametrize("read", [read_requests, lambda path: list(iter_requests(path))], ids=["whole", "pieces"])
class TestBadFiles:
    def test_missing(self, tmp_path, read):
        with pytest.raises(TraceError, match="does not exist"):
            read(tmp_path / "none.parquet")

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
    def test_cut_short(self, file, read, share):
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        with pytest.raises(TraceError, match=r"t.parquet' is no whole Parquet file \(.*foreign or cut short") as caught:
            read(file)
        assert "\n" not in str(caught.value)

    def test_a_flipped_byte_anywhere_is_an_error_or_harmless(self, file, read):
        content, right = file.read_bytes(), read_requests(file)
        for at in np.random.default_rng(0).integers(4, len(content) - 8, 60):
            file.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            with contextlib.suppress(TraceError, CapacityError):
                read(file)
                assert at > len(content) // 2 or same(read_requests(file), right)

    def test_another_programs_file(self, tmp_path, read):
        path = tmp_path / "other.parquet"
        pq.write_table(pa.table({"x": [1, 2]}), path)
        with pytest.raises(TraceError, match="Parquet file of another program"):
            read(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 99}, "format version 99, but this kvpager reads up to 1: update kvpager"),
            ({"format": "other"}, "another program"),
            ({"block_size": "many"}, "is damaged"),
            ({"block_size": 5}, "row 0: its blocks of 5 tokens are neither"),
        ],
        ids=str,
    )
    def test_metadata_that_contradicts(self, file, read, change, message):
        restate(file, change)
        with pytest.raises(TraceError, match=message):
            read(file)


@pytest.mark.parametrize(("accesses", "message"), [(-1, "is damaged"), (3, "other block ids"), (10**5, "other block ids")])
def test_a_wrong_count_of_accesses_is_found(file, accesses, message):
    restate(file, {"accesses": accesses})
    with pytest.raises(TraceError, match=message):
        read_requests(file)


def test_what_does_not_fit_into_memory_is_refused_but_streams(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_requests(path, session_requests(20))
    restate(path, {"accesses": 10**12})
    with pytest.raises(CapacityError, match=r"t.parquet' needs 3\.\d+ TiB of memory"):
        read_requests(path)
    monkeypatch.setattr(room, "free_memory_bytes", lambda: 2**25)
    with pytest.raises(CapacityError, match=r"t.parquet' needs .* 32 MiB are free: read it piece by piece \(iter_requests\)"):
        read_requests(path)
    assert sum(len(piece) for piece in iter_requests(path)) == len(session_requests(20))
