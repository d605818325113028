"""The block store where nothing fails: a bounded dictionary that forgets in the right order."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.store.blocks import block_of, conserved, crash, read
from tests.stores import GatedFiles

from kvpager import store as block_store
from kvpager.errors import BadInput, StoreError, UnknownName
from kvpager.store import Namespace, chain

KEY = st.integers(0, 5).map(lambda number: b"%d" % number)
LENGTH = st.sampled_from([0, 1, 4096, 4097, 9000])
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEY, LENGTH, st.integers(0, 99)),
        st.tuples(st.just("put"), KEY, LENGTH, st.integers(0, 99)),
        st.tuples(st.just("delete"), KEY),
        st.tuples(st.sampled_from(["flush", "reopen", "crash", "lose the index"])),
    ),
    max_size=10,
)


@settings(max_examples=20, deadline=None)
@given(operations=OPERATIONS)
@example([("put", b"1", 9000, 0), ("crash",), ("put", b"1", 1, 1), ("crash",), ("delete", b"1"), ("crash",)])
@example([("put", b"1", 9000, 0), ("put", b"1", 9000, 1), ("flush",), ("delete", b"1"), ("lose the index",)])
def test_a_store_with_room_is_a_dictionary(tmp_path_factory, operations):
    """Whatever happens to the process: what was put is there, what was replaced or deleted is not."""
    path, model = tmp_path_factory.mktemp("model") / "store", {}
    store = block_store.open(path, "4MiB")
    for operation, *what in operations:
        if operation == "put":
            key, length, seed = what
            model[key] = block_of(length, seed)
            assert store.put(key, model[key])
        elif operation == "delete":
            assert store.delete(what[0]) == (model.pop(what[0], None) is not None)
        elif operation == "flush":
            assert store.flush()
        else:
            (store.close if operation == "reopen" else lambda: crash(store))()  # noqa: B023
            if operation == "lose the index":
                for index in path.glob("size-*/index.sqlite"):
                    index.unlink()
            store = block_store.open(path)
        for key in (b"%d" % number for number in range(6)):
            assert read(store, key) == model.get(key)
        assert store.stats()["blocks"] == len(model)
    assert conserved(store)
    store.close()


class SlowStore:
    """Blocks of one size by least recent use, leaves first, under watermarks."""

    def __init__(self, low, high, size):
        self.low, self.high, self.size, self.now = low, high, size, 0
        self.blocks = {}

    def put(self, key, parent):
        used = len(self.blocks) * self.size
        if used + self.size > self.high:
            while len(self.blocks) * self.size + self.size > self.low:
                leaves = [one for one in self.blocks if not any(behind == one for behind, _ in self.blocks.values())]
                del self.blocks[min(leaves, key=lambda one: self.blocks[one][1])]
        self.now += 1
        self.blocks[key] = parent, self.now

    def read(self, key):
        self.now += 1
        if key in self.blocks:
            self.blocks[key] = self.blocks[key][0], self.now


@settings(max_examples=12, deadline=None)
@given(uses=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30)), max_size=50))
def test_what_is_held_is_what_brute_force_holds(tmp_path_factory, uses):
    slow = SlowStore(0.5 * (320 << 10), 0.75 * (320 << 10), 8192 + 4096)
    with block_store.open(tmp_path_factory.mktemp("held") / "store", 320 << 10, watermarks=(0.5, 0.75)) as store:
        for reading, number, other in uses:
            key, parent = b"%d" % number, b"%d" % other if other > number else None
            if reading:
                assert store.get(key, bytearray(8000)) == (key in slow.blocks)
                slow.read(key)
            elif key not in slow.blocks:
                slow.put(key, parent)
                assert store.put(key, block_of(8000, number), parent)
            assert {one.digest for one in store.scan()} == {store.digest(key) for key in slow.blocks}
        assert store.stats()["disk_bytes"] <= 320 << 10


def test_the_bound_holds_for_all_sizes_together(made, tmp_path):
    """A size that comes late takes slabs from the others; nothing that is served is wrong, all the way."""
    rng = np.random.default_rng(0)
    store, held = made(capacity=1 << 20), {}
    for number in range(160):
        phase = [4096, 60_000, 9000, 200_000][number // 20 % 4]
        length, key = int(rng.integers(0, phase)), b"%d" % rng.integers(40)
        held[key] = block_of(length, number)
        assert store.put(key, held[key])
        assert read(store, key) == held[key]
        on_disk = sum(file.stat().st_size for file in (tmp_path / "store").rglob("slab-*"))
        assert on_disk == store.stats()["disk_bytes"] <= 1 << 20
        if number % 20 == 19:
            for key, payload in held.items():
                assert read(store, key) in (None, payload)
    stats = store.stats()
    assert stats["evicted"] > 50
    assert stats["stored"] == 160
    assert conserved(store)


@pytest.mark.parametrize("length", [0, 1, 64 << 20])
@pytest.mark.parametrize("key", [b"", b"k" * 10_000])
def test_the_longest_and_the_shortest(made, length, key):
    store = made(capacity="256MiB")
    payload = bytes(range(256)) * (length // 256) if length > 1 else bytes(length)
    assert store.put(key, payload)
    buffer = bytearray(length)
    assert store.get(key, buffer)
    assert buffer == payload
    with pytest.raises(BadInput, match="10,000"):
        store.put(key + b"k" * 10_000 + b"x", b"")


def test_what_is_too_long_or_no_buffer_is_refused(made):
    store = made()
    for buffer, word in (
        (np.zeros((64 << 20) + 1, np.uint8), "67,108,865"),
        ("text", "str"),
        (np.zeros((4, 4))[:, 1], "contiguous"),
    ):
        with pytest.raises(BadInput, match=word):
            store.put(b"k", buffer)
    assert store.put(b"k", np.arange(6, dtype=np.int16).reshape(2, 3))
    with pytest.raises(BadInput, match="read-only"):
        store.get(b"k", bytes(12))
    for length in (11, 13):
        with pytest.raises(BadInput, match="12 bytes does not go into"):
            store.get(b"k", bytearray(length))
    into = np.zeros(6, np.int16)
    assert store.get(b"k", into)
    assert into.tolist() == list(range(6))
    assert not store.put(b"huge", bytes(2 << 20))  # longer than the whole store
    assert store.stats()["refused"] == 1
    with pytest.raises(BadInput, match="itself"):
        store.put(b"k", b"", parent=b"k")
    with pytest.raises(BadInput, match="2 and 1"):
        store.get_many([b"a", b"b"], [bytearray(1)])
    assert conserved(store)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"capacity": -1}, "capacity"), ({"capacity": "8 apples"}, "apples"), ({"watermarks": (0.9, 0.5)}, "watermarks"),
        ({"deadline_s": 0}, "deadline_s"), ({"quotas": {b"t": -1}}, "quota"), ({"capacity": 0}, "capacity"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(made, settings, word):
    with pytest.raises(BadInput, match=word):
        made(**settings)


def test_an_unknown_policy_is_refused_before_anything_is_made(made, tmp_path):
    with pytest.raises(UnknownName, match="s3-fifo"):
        made(policy="s3fifo")
    assert not list(tmp_path.iterdir())


def test_a_tenant_sees_and_displaces_only_its_own(made):
    store = made(capacity="2MiB", quotas={b"a": 10 * 12288}, tenant=b"a")
    other, nobody = store.of_tenant(b"b"), store.of_tenant(b"")
    for number in range(20):
        assert other.put(b"%d" % number, block_of(8000, number))
    for number in range(50):
        assert store.put(b"%d" % number, block_of(8000, 1000 + number))
    assert [store.contains(b"%d" % number) for number in range(50)] == [False] * 40 + [True] * 10
    assert other.contains_many([b"%d" % number for number in range(50)]).tolist() == [True] * 20 + [False] * 30
    assert read(other, b"19") == block_of(8000, 19)
    assert read(nobody, b"19") is None
    assert not store.delete(b"3")
    assert not nobody.pin(b"3", 10)
    assert len(store.scan()) == 10
    assert len(other.scan()) == 20
    assert nobody.scan() == []
    assert len(nobody.scan(everyone=True)) == 30
    assert sorted(store.stats()["tenants"].values()) == [10 * 12288, 20 * 12288]
    assert not store.put(b"long", bytes(200_000))  # more than the quota, though there is room
    assert other.put(b"long", bytes(200_000))


def test_another_namespace_is_another_world(made):
    store = made(namespace=Namespace(weights="one", dtype="bfloat16"))
    other = store.of_tenant(b"", Namespace(weights="one", dtype="float16"))
    assert store.put(b"k", b"payload")
    assert read(other, b"k") is None
    assert other.scan() == []
    assert other.put(b"k", b"another")
    assert read(store, b"k") == b"payload"


def test_a_chain_leaves_from_its_end(made):
    store = made(capacity=40 * 8192, watermarks=(0.9, 0.95))
    keys = chain(range(16 * 20))
    for key, parent in zip(keys, [None, *keys], strict=False):
        assert store.put(key, b"x" * 4000, parent)
    for number in range(30):
        assert store.put(b"%d" % number, b"y" * 4000, b"%d" % (number - 1) if number else None)
        held = store.contains_many(keys).tolist()
        assert held == sorted(held, reverse=True)  # a prefix
    assert 0 < sum(held) < 20


def test_a_pin_holds_till_it_expires(made, monkeypatch):
    store = made(capacity=40 * 8192)
    assert store.put(b"first", b"x")
    assert store.put(b"pinned", b"y", parent=b"first")
    assert store.pin(b"pinned", 1000)
    assert not store.pin(b"absent", 1000)
    for number in range(60):
        assert store.put(b"%d" % number, b"z")
    assert store.contains_many([b"first", b"pinned"]).all()
    catalogue = store._backend._core.catalogue
    catalogue._clock = lambda: time.monotonic() + 1001
    for number in range(60):
        assert store.put(b"%d" % (100 + number), b"z")
    assert not store.contains_many([b"first", b"pinned"]).any()
    for seconds in (-1, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="pin of"):
            store.pin(b"0", seconds)


def test_a_store_full_of_pins_refuses_and_lets_go(made):
    store = made(capacity=20 * 8192)
    number = 0
    while store.put(b"%d" % number, b"x"):
        assert store.pin(b"%d" % number, 1000)
        number += 1
    assert 10 < number < 20
    assert store.contains_many([b"%d" % one for one in range(number)]).all()
    assert not store.put(b"another", bytes(30_000))  # nor one of another size
    assert store.pin(b"0", 0)
    assert store.put(b"more", b"x")
    assert not store.contains(b"0")


def test_batches_and_tickets(made):
    store = made(capacity="8MiB", staging_bytes=100_000)
    keys = [b"%d" % number for number in range(60)]
    payloads = [block_of(300 * number, number) for number in range(60)]
    parents = [None, *keys[:-1]]
    assert store.put_many(keys[:30], payloads[:30], parents[:30]).all()
    ticket = store.submit_put(keys[30:], payloads[30:], parents[30:])
    [(answered, ok)] = store.wait([ticket], 30)
    assert answered == ticket
    assert ok.all()
    buffers = [bytearray(len(payload)) for payload in payloads] + [bytearray(3)]
    first, then = store.submit_get([*keys, b"absent"], buffers), store.submit_get([], [])
    answers = {}
    while len(answers) < 2:
        answers.update(store.poll())
        time.sleep(0.01)
    assert answers[first].tolist() == [True] * 60 + [False]
    assert answers[then].tolist() == []
    assert buffers[:60] == payloads
    assert store.get_many(keys[:3], [bytearray(300 * number) for number in range(3)]).all()
    assert store.contains_many([*keys, b"absent"]).tolist() == [True] * 60 + [False]
    assert conserved(store)
    behind = {one.digest: one.parent for one in store.scan()}
    assert behind[store.digest(b"7")] == store.digest(b"6")
    assert behind[store.digest(b"0")] == b""


def test_many_threads(made):
    store, wrong = made(capacity="1MiB"), []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(40):
            number = int(rng.integers(30))
            key = b"%d" % number
            if rng.random() < 0.5:
                store.put(key, block_of(500 * number, number))
            elif (found := read(store, key)) not in (None, block_of(500 * number, number)):
                wrong.append((key, len(found)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert conserved(store)


def test_a_replaced_block_waits_for_the_new_one_to_be_durable(made):
    store = made(capacity="4MiB")
    assert store.put(b"k", b"old")
    assert store.put(b"k", block_of(9000))
    assert len(store._backend._room.retired) == 1
    assert store.flush()
    assert store._backend._room.retired == []
    assert read(store, b"k") == block_of(9000)
    for number in range(200):  # it does not pile up
        assert store.put(b"k", b"%d" % number)
    assert len(store._backend._room.retired) <= 65


def test_a_smaller_bound_is_kept_from_the_start(made, tmp_path):
    store = made(capacity="2MiB")
    for number in range(60):
        assert store.put(b"%d" % number, block_of(20_000, number))
    assert store.put(b"pinned", b"x")
    store.close()
    store = made(capacity="512KiB")
    assert store.stats()["disk_bytes"] <= 512 << 10
    held = [number for number in range(60) if read(store, b"%d" % number) == block_of(20_000, number)]
    assert held == list(range(held[0], 60))
    assert store.put(b"more", b"x")


def test_a_directory_of_something_else_is_not_touched(made, tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "thesis.tex").write_text("text")
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        made()
    assert os.listdir(tmp_path / "store") == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        made("file")


def test_nothing_is_left_behind(made, tmp_path):
    def left():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    made("warm").close()
    before = left()
    for _ in range(3):
        store = made()
        assert store.put(b"k", b"x")
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.put(b"k", b"x")
        with pytest.raises(StoreError, match="new"):
            made("empty", 0)
    assert left() == before


def test_files_are_for_their_owner_alone(made, tmp_path):
    old = os.umask(0)
    try:
        store = made()
        assert store.put(b"k", b"x")
        assert store.flush()
        modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in (tmp_path / "store").rglob("*")}
        assert modes == {(True, 0o700), (False, 0o600)}
    finally:
        os.umask(old)


def test_a_put_is_not_there_before_it_is_acknowledged(made):
    files = GatedFiles()
    store = made(files=files)
    assert store.put(b"warm", b"x")
    files.gate.clear()
    ticket = store.submit_put([b"k"], [b"payload"])
    assert store.wait([ticket], 0.2) == []
    assert not store.contains(b"k")
    files.gate.set()
    [(_, ok)] = store.wait([ticket], 30)
    assert ok.all()
    assert store.contains(b"k")
