"""The store against a dictionary, and each of its promises where nothing fails."""

import gc
import os
import stat
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.stores import LAYERS, PART_BYTES, PARTS, GatedFiles, Rig, payload_of

from kvpager.errors import InvariantError, StorageFull, StoreError, TierBusy
from kvpager.slab import SlabStore
from kvpager.slab.files import aligned
from kvpager.slab.reads import Reads
from kvpager.slab.writes import Writes

KEYS = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), KEYS, st.integers(0, LAYERS - 1), st.integers(0, 99)),
    st.tuples(st.just("forget"), KEYS),
    st.tuples(st.just("keep_only"), KEYS),
    st.tuples(st.sampled_from(["sync", "reopen", "crash", "lose the index"])),
)


def matches(rig, model):
    """Whether the store holds what `model` holds, byte by byte, and nothing else is served."""
    everything = [(key, layer) for key in range(1, 8) for layer in range(LAYERS)]
    keys, layers = map(list, zip(*everything, strict=True))
    ok, payload = rig.get(keys, layers)
    for number, record in enumerate(everything):
        assert ok[number].all() == ok[number].any() == (record in model), record
        if record in model:
            assert (payload[number] == model[record]).all(), record
    assert (rig.store.holds(np.array(keys, np.uint64), np.array(layers, np.int32)) == ok.all(1)).all()
    assert rig.store.used_bytes == len(model) * rig.shape.payload_bytes
    rig.store.check()


@settings(max_examples=40, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=12))
@example([("write", [1], 0, 0), ("crash",)])
@example([("write", [1], 0, 0), ("reopen",), ("write", [2], 0, 0), ("crash",), ("reopen",)])
@example([("write", [1], 0, 0), ("write", [1], 0, 1), ("lose the index",), ("write", [1], 0, 2), ("crash",)])
def test_the_store_is_a_dictionary(tmp_path_factory, operations):
    rig, model = Rig(tmp_path_factory.mktemp("model") / "store"), {}
    for operation, *arguments in operations:
        if operation == "write":
            keys, layer, seed = arguments
            payload = payload_of(len(keys), seed=seed)
            try:
                assert rig.put(keys, [layer] * len(keys), payload).all()
                model.update({(key, layer): payload[number] for number, key in enumerate(keys)})
            except StorageFull:
                assert len(model) + len(keys) > 4 * rig.shape.places
        elif operation == "forget":
            rig.store.forget(np.array(arguments[0], np.uint64))
            model = {record: payload for record, payload in model.items() if record[0] not in arguments[0]}
        elif operation == "keep_only":
            before = len(model)
            model = {record: payload for record, payload in model.items() if record[0] in arguments[0]}
            freed = rig.store.keep_only(np.array(arguments[0], np.uint64))
            assert freed == (before - len(model)) * rig.shape.record_bytes
        elif operation == "sync":
            rig.store.sync()
        elif operation == "reopen":
            rig.reopen()
            assert rig.store._contents.hinted
        else:
            rig.store.sync() if operation == "lose the index" else None
            held = dict(model)
            rig.crash()
            if operation == "lose the index":
                (rig.path / "index.sqlite").unlink()
            rig.open()
            # What was forgotten may be found again by its header: it is the caller's to drop.
            rig.store.keep_only(np.array([key for key, _ in held] or [0], np.uint64))
            back = rig.store._contents.table.all()
            for key, layer in zip(back.key.tolist(), back.layer.tolist(), strict=True):
                if (key, layer) not in held:
                    _, payload = rig.get([key], [layer])
                    model[key, layer] = payload[0]
        matches(rig, model)
    rig.store.close()


@pytest.mark.parametrize(
    ("parts", "part_bytes", "slab_bytes"),
    [
        (2, 512, 64 << 10),
        (3, 5000, 256 << 10),
        (8, 4096, 1 << 20),
        (2, 65536, 1 << 20),
        (8, 8192, 4 << 20),
        (1, 700_000, 4 << 20),
    ],
)
@pytest.mark.parametrize("shift", [0, 16])
def test_any_subset_comes_back_into_any_slots(rig, parts, part_bytes, slab_bytes, shift):
    """Small and large parts, straight and through scratch, scattered and in runs, gaps read along and jumped over."""
    store = rig(parts=parts, part_bytes=part_bytes, slab_bytes=slab_bytes, capacity_bytes=5 * slab_bytes)
    records = min(2 * store.shape.places, 40)
    payload = payload_of(records, parts, part_bytes)
    keys, layers = np.arange(records, dtype=np.uint64) // 3 + 5, np.arange(records, dtype=np.int32) % 3
    rng = np.random.default_rng(1)
    slots_there = 3 * records * parts
    memory = aligned(slots_there * part_bytes + shift)[shift:].reshape(slots_there, part_bytes)  # on a page, and beside it
    for scattered in (False, True):
        slots = np.arange(records * parts, dtype=np.int32) if not scattered else rng.permutation(len(memory))[: records * parts]
        slots = slots.astype(np.int32).reshape(records, parts)
        memory[slots] = payload
        [(_, ok)] = store.store.wait([store.store.write(keys, layers, memory, slots)], 30)
        assert ok.all()
        for share in (1.0, 0.5, 0.1):
            chosen = np.flatnonzero(rng.random(records * parts) < share)
            chosen = rng.permutation(np.concatenate([chosen, chosen[:1]]))  # one twice
            into = np.arange(len(chosen)) if share == 1 else rng.permutation(len(memory))[: len(chosen)]
            memory[:] = 0xEE
            record, part = np.divmod(chosen, parts)
            ticket = store.store.read(keys[record], layers[record], part.astype(np.int32), memory, into.astype(np.int32))
            [(_, ok)] = store.store.wait([ticket], 30)
            assert ok.all()
            assert (memory[into] == payload[record, part]).all()
            assert (np.delete(memory, into, 0) == 0xEE).all()


def test_long_runs_of_whole_pages_are_not_copied(rig, monkeypatch):
    store = rig(parts=2, part_bytes=65536, slab_bytes=1 << 20, capacity_bytes=1 << 20)
    took = set()
    monkeypatch.setattr(Reads, "_copied", lambda *_: took.add("copied"))
    monkeypatch.setattr(Writes, "_gathered", lambda *_: took.add("gathered"))
    memory = aligned(4 * 65536).reshape(4, 65536)
    memory[:2] = payload_of(1, 2, 65536)[0]
    slots = np.arange(4, dtype=np.int32)
    key, layer = np.ones(1, np.uint64), np.zeros(1, np.int32)
    [(_, ok)] = store.store.wait([store.store.write(key, layer, memory, slots[None, :2])], 30)
    assert ok.all()
    [(_, ok)] = store.store.wait([store.store.read(key.repeat(2), layer.repeat(2), slots[:2], memory, slots[2:])], 30)
    assert ok.all()
    assert (memory[:2] == memory[2:]).all()
    assert not took


def test_neighbours_are_read_in_one_call(rig, monkeypatch):
    store = rig(parts=8, part_bytes=8192, slab_bytes=4 << 20, capacity_bytes=4 << 20)
    assert store.put([1] * 3 + [2] * 3, [0, 1, 2] * 2, payload_of(6, 8, 8192)).all()
    calls = []
    read = store.store._disk.files.preadv
    monkeypatch.setattr(store.store._disk.files, "preadv", lambda fd, buffers, at: calls.append(at) or read(fd, buffers, at))
    ok, _ = store.get([1] * 3 + [2] * 3, [0, 1, 2] * 2)
    assert ok.all()
    assert len(calls) <= 4 + 1  # a job a thread, not one a unit


def test_keys_are_new_after_any_number_of_openings(rig):
    store = rig()
    seen = set()
    for _ in range(5):
        keys = store.store.new_keys(100)
        assert keys.dtype == np.uint64
        assert not seen & set(keys.tolist())
        seen |= set(keys.tolist())
        store.put(keys[:1], [0], payload_of(1))
        store.reopen()


def test_files_are_for_their_owner_alone(rig, tmp_path):
    old = os.umask(0)
    try:
        store = rig("new/store")
        store.put([1], [0], payload_of(1))
        store.store.sync()
        assert stat.S_IMODE((tmp_path / "new/store").stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new/store").iterdir()}
    finally:
        os.umask(old)
    assert len(modes) >= 4
    assert set(modes.values()) == {0o600}, modes


def test_the_queue_is_bounded(rig):
    files = GatedFiles()
    store = rig(files=files, queue_bytes=3 * 8192)
    memory = payload_of(8).reshape(-1, PART_BYTES)
    slots = np.arange(2, dtype=np.int32).reshape(1, PARTS)
    files.gate.clear()
    for key in range(3):
        store.store.write(np.array([key], np.uint64), np.zeros(1, np.int32), memory, slots)
    before = store.store._contents._space.free
    for _ in range(3):
        with pytest.raises(TierBusy, match="wait"):
            store.store.write(np.array([9], np.uint64), np.zeros(1, np.int32), memory, slots)
    assert store.store._pool.queued_bytes == 3 * 8192
    assert store.store._contents._space.free == before
    assert store.store.poll() == []
    files.gate.set()
    store.store.drain()
    assert [ok.all() for _, ok in store.store.poll()] == [True] * 3
    # One that is larger than the whole queue goes through alone.
    assert store.put([20, 21, 22, 23], [0] * 4, payload_of(4)).all()


def test_a_wait_ends_at_its_deadline(rig):
    files = GatedFiles()
    store = rig(files=files)
    files.gate.clear()
    memory = payload_of(1)[0]
    ticket = store.store.write(np.ones(1, np.uint64), np.zeros(1, np.int32), memory, np.array([[0, 1]], np.int32))
    assert store.store.wait([ticket], 0.05) == []
    assert not store.store.holds(np.ones(1, np.uint64), np.zeros(1, np.int32)).any()
    files.gate.set()
    [(answered, ok)] = store.store.wait([ticket], 30)
    assert (answered, ok.tolist()) == (ticket, [True])


def test_forgetting_what_is_under_way_frees_it(rig):
    files = GatedFiles()
    store = rig(files=files)
    total = store.store._contents._space.free
    files.gate.clear()
    memory = payload_of(1)[0]
    ticket = store.store.write(np.ones(1, np.uint64), np.zeros(1, np.int32), memory, np.array([[0, 1]], np.int32))
    store.store.forget(np.ones(1, np.uint64))
    assert store.store._contents._space.free == total - 1  # its place is being written: not for others yet
    files.gate.set()
    store.store.wait([ticket], 30)
    assert not store.store.holds(np.ones(1, np.uint64), np.zeros(1, np.int32)).any()
    store.store.check()
    assert store.store._contents._space.free == total


def test_a_place_that_is_being_read_is_not_written(rig):
    files = GatedFiles()
    store = rig(files=files, capacity_bytes=64 << 10)
    places = store.shape.places
    payload = payload_of(places)
    store.put(range(places), [0] * places, payload)
    files.read_gate.clear()
    memory, slots = np.zeros((2, PART_BYTES), np.uint8), np.arange(2, dtype=np.int32)
    reading = store.store.read(np.full(2, 3, np.uint64), np.zeros(2, np.int32), slots, memory, slots)
    store.store.forget(np.array([3], np.uint64))
    with pytest.raises(TierBusy, match="under way"):
        store.put([99], [0], payload[:1])
    files.read_gate.set()
    [(_, ok)] = store.store.wait([reading], 30)
    assert ok.all()
    assert (memory == payload[3]).all()
    assert store.put([99], [0], payload[:1]).all()


def test_equal_bytes_have_another_checksum_in_every_part(rig):
    store = rig()
    seen = []
    for _ in range(2):  # the second time they replace the first: another generation
        assert store.put([1, 1, 2], [0, 1, 0], np.full((3, PARTS, PART_BYTES), 7, np.uint8)).all()
        seen += store.store._contents.table.all().checksums.ravel().tolist()
    assert len(set(seen)) == len(seen) == 2 * 3 * PARTS


def test_a_full_store_says_so_and_goes_on_after_forget(rig):
    store = rig()
    places = 4 * store.shape.places
    payload = payload_of(places + 1)
    assert store.put(range(places), [0] * places, payload[:places]).all()
    with pytest.raises(StorageFull, match="kvpager store gc"):
        store.put([99], [0], payload[places:])
    ok, got = store.get(range(places), [0] * places)
    assert ok.all()
    assert (got == payload[:places]).all()
    store.store.forget(np.array([3], np.uint64))
    assert store.put([99], [0], payload[places:]).all()
    assert store.store.disk_bytes <= store.settings["capacity_bytes"]


def test_a_replaced_record_keeps_its_place_until_the_new_one_is_durable(rig):
    store = rig(capacity_bytes=64 << 10)
    places = store.shape.places
    store.put(range(places - 1), [0] * (places - 1), payload_of(places - 1))
    store.put([0], [0], payload_of(1, seed=5))  # takes the last place; the old one must wait
    assert store.store._contents._space.free == 0
    store.store.sync()
    assert store.store._contents._space.free == 1
    _, got = store.get([0], [0])
    assert (got == payload_of(1, seed=5)).all()


def test_nothing_is_left_behind(tmp_path):
    def left():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    Rig(tmp_path / "warm").store.close()
    before = left()
    for _ in range(5):
        rig = Rig(tmp_path / "store")
        rig.put([1], [0], payload_of(1))
        rig.store.close()
        rig.store.close()
        with pytest.raises(InvariantError, match="closed"):
            rig.put([1], [0], payload_of(1))
        with pytest.raises(StoreError):
            Rig(tmp_path / "store", fingerprint="another")
        with pytest.raises(StoreError):
            Rig(tmp_path / "store", capacity_bytes=1)
    assert left() == before


def test_empty_requests_are_answered(rig):
    store = rig()
    memory, none = payload_of(1)[0], np.zeros(0, np.int32)
    written = store.store.write(np.zeros(0, np.uint64), none, memory, none.reshape(0, PARTS))
    read = store.store.read(np.zeros(0, np.uint64), none, none, memory, none)
    assert [(ticket, len(ok)) for ticket, ok in store.store.wait([written, read], 30)] == [(written, 0), (read, 0)]
    assert store.store.poll() == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fingerprint": "g"}, "fingerprint"), ({"parts": 1}, "parts"), ({"part_bytes": 1024}, "part_bytes"),
        ({"layers": 2}, "layers"), ({"slab_bytes": 128 << 10}, "slab_bytes"), ({"capacity_bytes": 1000}, "1,000"),
        ({"slab_bytes": 8192 + 1}, "8193"), ({"parts": 10_000}, "10000"),
    ],
)  # fmt: skip
def test_a_store_for_something_else_is_refused(rig, change, word):
    store = rig()
    store.put([1], [0], payload_of(1))
    store.store.close()
    with pytest.raises(StoreError, match=word):
        SlabStore(store.path, **{**store.settings, **change})
    store.open()
    assert store.store.holds(np.ones(1, np.uint64), np.zeros(1, np.int32)).all()
