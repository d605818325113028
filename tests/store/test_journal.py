"""What a store counts: everything that comes and goes, once, and why; and the log of it."""

import errno
import itertools
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.blocks import block_of, conserved, flip
from tests.stores import GatedFiles, RefusingFiles

from kvpager import store as block_store
from kvpager.errors import BadInput
from kvpager.store.entry import Entry
from kvpager.store.journal import AGES_S, DEPARTURES, EVICTED_FOR, Histogram, Journal

KEY = st.integers(0, 9).map(lambda number: b"%d" % number)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEY, st.sampled_from([0, 1, 4000, 9000, 30_000, 70_000]), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("get"), KEY, st.just(0), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("delete"), KEY, st.just(0), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("reopen"), KEY, st.sampled_from([1 << 18, 1 << 19]), st.just(b"")),
    ),
    max_size=40,
)


@settings(max_examples=12, deadline=None)
@given(calls=CALLS)
def test_what_came_and_did_not_leave_is_held(tmp_path_factory, calls):
    """Requests, writes and bytes add up after every call, whatever was evicted for whatever reason."""
    path = tmp_path_factory.mktemp("balance") / "store"
    settings = {"quotas": {b"a": 1 << 17}, "watermarks": (0.5, 0.8)}
    store = block_store.open(path, 1 << 18, **settings)
    for what, key, size, tenant in calls:
        mine = store.of_tenant(tenant)
        if what == "put":
            mine.put(key, block_of(size))
        elif what == "get":
            length = mine.length(key)
            mine.get(key, bytearray(length or 0))
        elif what == "delete":
            mine.delete(key)
        else:
            store.close()
            store = block_store.open(path, size, **settings)
        assert conserved(store)
    journal, stats = store.stats()["journal"], store.stats()
    assert sum(journal["left_blocks"][cause] for cause in EVICTED_FOR) == stats["evicted"]
    assert sum(journal["read_s"]["counts"]) == stats["hits"]
    assert sum(journal["write_s"]["counts"]) == stats["stored"]
    assert sum(journal["idle_s"]["counts"]) <= sum(journal["lifetime_s"]["counts"]) <= sum(journal["left_blocks"].values())
    store.close()


def left(store):
    return {cause: count for cause, count in store.stats()["journal"]["left_blocks"].items() if count}


def test_why_blocks_leave(made):
    """One store for each cause."""
    store = made("quota", quotas={b"a": 20_000})
    mine = store.of_tenant(b"a")
    assert all(mine.put(b"%d" % number, block_of(4000)) for number in range(4))
    assert left(store) == {"quota": 2}
    store = made("watermark", watermarks=(0.5, 0.6))
    assert all(store.put(b"%d" % number, block_of(4000)) for number in range(90))
    assert set(left(store)) == {"watermark"}
    store = made("place", 1 << 17, watermarks=(1.0, 1.0))
    assert all(store.put(b"%d" % number, block_of(4000)) for number in range(40))
    assert set(left(store)) == {"place"}
    assert store.put(b"large", block_of(20_000))
    assert set(left(store)) == {"place", "slab"}
    store = made("bound", 1 << 20)
    assert all(store.put(b"%d" % number, block_of(4000)) for number in range(100))
    store.close()
    assert set(left(made("bound", 1 << 18))) == {"bound"}
    store = made("others")
    assert store.put(b"1", block_of(9))
    assert store.put(b"1", block_of(8))
    assert store.delete(b"1")
    assert left(store) == {"replaced": 1, "deleted": 1}


def test_a_block_that_is_deleted_while_it_is_written(made):
    files = GatedFiles()
    store = made(files=files)
    assert store.put(b"0", block_of(9))
    files.gate.clear()
    ticket = store.submit_put([b"1"], [block_of(9)])
    while not store.stats()["under_way"]["writes"]:
        pass
    assert store.stats()["unaccounted"] == {"reads": 0, "writes": 0, "bytes": 0}
    store.delete(b"1", 0.01)
    files.open_gates()
    store.wait([ticket], 10.0)
    assert left(store) == {"deleted": 1}
    assert conserved(store)


def test_reads_under_way_are_accounted_for(made):
    files = GatedFiles()
    store = made(files=files)
    assert store.put(b"1", block_of(9))
    files.read_gate.clear()
    tickets = [store.submit_get([b"1"], [bytearray(9)]) for _ in range(3)]
    while store.stats()["asked"] < 3:
        pass
    stats = store.stats()
    assert (stats["under_way"]["reads"], stats["unaccounted"]["reads"]) == (3, 0)
    store.give_up(tickets[0])
    assert (store.stats()["under_way"]["reads"], store.stats()["unaccounted"]["reads"]) == (2, 0)
    files.open_gates()
    store.wait(tickets[1:], 10.0)
    assert store.stats()["late"] == 1
    assert conserved(store)


def test_times_are_those_of_the_clock():
    """A block that comes at 10 s, is read at 12 and 15 and leaves at 99."""
    now = [10.0]
    journal = Journal(clock=lambda: now[0])
    entry = Entry(bytes(32), b"", bytes(16), bytes(16), 100, 1)
    journal.stored(entry, 9.5)
    for moment in (12.0, 15.0):
        now[0] = moment
        journal.read([entry], moment - 0.001)
    now[0] = 99.0
    journal.left(entry, "quota")
    said = journal.document()
    assert {name: said[name]["sum"] for name in ("write_s", "reuse_s", "lifetime_s", "idle_s")} == {
        "write_s": 0.5, "reuse_s": 5.0, "lifetime_s": 89.0, "idle_s": 84.0
    }  # fmt: skip
    assert said["read_s"]["sum"] == pytest.approx(0.002)
    assert journal.balance_bytes == 0
    found = Entry(bytes(32), b"", bytes(16), bytes(16), 100, 2)
    journal.found(found)
    assert journal.balance_bytes == 100
    journal.left(found, "deleted")
    assert journal.document()["lifetime_s"]["sum"] == 89.0  # since when it was there is not known


@given(st.lists(st.floats(0, 1e7), max_size=30))
def test_a_histogram_counts_each_once(values):
    one = Histogram(AGES_S)
    for value in values:
        one.add(value)
    said = one.document()
    edges = [-1.0, *AGES_S, np.inf]
    assert said["counts"] == [sum(low < value <= high for value in values) for low, high in itertools.pairwise(edges)]
    assert said["sum"] == sum(values)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_tells_each_event_on_a_line(tmp_path):
    with block_store.open(tmp_path / "s", 1 << 17, log=tmp_path / "log", watermarks=(1.0, 1.0)) as store:
        digest = store.digest(b"0")
        assert store.put(b"0", block_of(4000))
        assert store.get(b"0", bytearray(4000))
        assert not store.get(b"1", bytearray(4000))
        for number in range(40):
            assert store.put(b"more %d" % number, block_of(4000))
        assert store.delete(b"more 39")
    found = lines_of(tmp_path / "log")
    assert {tuple(one) for one in found} == {("time", "event", "key", "namespace", "tenant", "bytes", "seconds", "cause")}
    assert [one["event"] for one in found[:3]] == ["put", "hit", "miss"]
    assert (found[0]["key"], found[0]["bytes"]) == (digest[:6].hex(), 4000)
    assert found[1]["seconds"] > 0
    assert {one["cause"] for one in found if one["event"] == "evict"} == {"place"}
    assert (found[-1]["event"], found[-1]["cause"]) == ("leave", "deleted")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert set(DEPARTURES) >= {one["cause"] for one in found if one["cause"]}


def test_the_log_tells_what_failed(tmp_path):
    files = RefusingFiles()
    with block_store.open(tmp_path / "s", "1MiB", log=tmp_path / "log", files=files) as store:
        assert store.put(b"0", block_of(4000))
        assert store.flush()
        slab = next(tmp_path.glob("s/size-*/slab-*.kv"))
        flip(slab, 2 * 4096 + 7)
        assert not store.get(b"0", bytearray(4000))
        files.refuse["write"] = errno.EIO
        assert not store.put(b"1", block_of(4000))
        files.refuse.clear()
    assert [one["event"] for one in lines_of(tmp_path / "log")][:3] == ["put", "corrupt", "unwritten"]


def test_a_log_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(BadInput, match="name another file"):
        block_store.open(tmp_path / "s", "1MiB", log=tmp_path / "nowhere" / "log")
    with block_store.open(tmp_path / "s", "1MiB") as store:  # and the store is free
        assert store.put(b"0", b"1")
        assert store.stats()["events_lost"] == 0


def test_a_log_that_waits_for_its_disk_holds_nobody(tmp_path):
    """A pipe that nobody reads stands for it: what does not fit is lost and counted, calls go on."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    store = block_store.open(tmp_path / "s", "1MiB", log=pipe)
    for number in range(900):  # a pipe holds 64 KiB
        store.get(b"%d" % number, bytearray(1), 5.0)
    assert store.stats()["misses"] == 900
    os.close(reader)  # from now on writing fails
    store.close()
