"""What breaks: bits, files, disks, processes. Nothing wrong is ever served, and nothing is lost in silence."""

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tests.stores import LAYERS, LosingFiles, RefusingFiles, Rig, payload_of

from kvpager.errors import StorageFull, StoreError
from kvpager.slab.files import PAGE_BYTES, Files, aligned

RECORDS = 18
KEYS, LAYER = [1 + number // LAYERS for number in range(RECORDS)], [number % LAYERS for number in range(RECORDS)]


@pytest.fixture
def filled(rig):
    """A closed store of three slabs, with records of six blocks and free places."""
    store = rig("filled")
    store.put(KEYS, LAYER, payload_of(RECORDS))
    store.store.close()
    return store


def copy_of(filled, path):
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(filled.path, path)
    return path


def judged(store):
    """Read everything; assert that what is served is right; return which records are not served."""
    ok, payload = store.get(KEYS, LAYER)
    right = (payload == payload_of(RECORDS)).all(2)
    assert right[ok].all(), "wrong bytes were served"
    return {(key, layer) for key, layer, good in zip(KEYS, LAYER, ok.all(1), strict=True) if not good}


def live_bytes(filled):
    """(file, first byte, bytes, kind) of all that matters in the store."""
    filled.open()
    shape, regions = filled.shape, []
    regions += [(f"slab-{number:05}.kv", 0, PAGE_BYTES, "superblock") for number in filled.store._contents.folder.fds]
    for place in filled.store._contents.table.all().place.tolist():
        name, at = f"slab-{place // shape.places:05}.kv", shape.place_offset(place)
        regions += [(name, at, PAGE_BYTES, "header"), (name, at + PAGE_BYTES, shape.payload_bytes, "payload")]
    filled.store.close()
    return [*regions, ("index.sqlite", 0, (filled.path / "index.sqlite").stat().st_size, "index")]


def flip(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        old = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


def flips(filled, path, count, seed):
    """Flip one bit at a time in a fresh copy."""
    rng = np.random.default_rng(seed)
    regions = live_bytes(filled)
    kinds = {kind: [region for region in regions if region[3] == kind] for kind in ("superblock", "header", "payload", "index")}
    for number in range(count):
        kind = list(kinds)[number % 4]
        name, first, length, _ = kinds[kind][rng.integers(len(kinds[kind]))]
        copy_of(filled, path)
        flip(path / name, 8 * first + int(rng.integers(8 * length)))
        lost_index = bool(rng.random() < 0.3)
        if lost_index:
            (path / "index.sqlite").unlink()
        store = Rig(path, slab_bytes=filled.shape.slab_bytes)
        try:
            yield kind, lost_index, store
        finally:
            store.store.close()


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_flipped_bits_are_never_served_and_always_counted(filled, memory_folder, count):
    for kind, lost_index, store in flips(filled, memory_folder / "copy", count, seed=count):
        lost = judged(store)
        damage = store.store.verify()
        if kind == "payload":
            assert len(lost) == 1
            assert store.store.stats.checksum_failures == 1
            assert [found.what.split()[0] for found in damage] == ["part"]
            assert (damage[0].key, damage[0].layer) in lost
        elif kind == "header":
            assert len(lost) == lost_index  # the checksums are known from the index, if it is there
            assert [found.what for found in damage] == ["header"]
        elif kind == "superblock":
            assert not lost
            assert [found.what for found in damage] == ["superblock"]
        else:
            assert not lost
            assert not damage
        store.store.check()
        assert store.put([77], [0], payload_of(1)).all()  # it goes on


def test_a_flip_in_a_part_that_goes_straight_to_its_slot(rig):
    """Long parts are not copied, but judged where they are."""
    store = rig(parts=2, part_bytes=65536, slab_bytes=1 << 20, capacity_bytes=1 << 20)
    memory = aligned(4 * 65536).reshape(4, 65536)
    memory[:2] = payload_of(1, 2, 65536)[0]
    slots, key, layer = np.arange(4, dtype=np.int32), np.ones(2, np.uint64), np.zeros(2, np.int32)
    store.store.wait([store.store.write(key[:1], layer[:1], memory, slots[None, :2])], 30)
    store.store.close()
    flip(store.path / "slab-00000.kv", 8 * (store.shape.place_offset(0) + PAGE_BYTES + 65536 + 777))
    store.open()
    [(_, ok)] = store.store.wait([store.store.read(key, layer, slots[:2], memory, slots[2:])], 30)
    assert ok.tolist() == [True, False]
    assert (memory[2] == memory[0]).all()
    assert store.store.stats.checksum_failures == 1


def test_a_right_part_in_a_wrong_place_is_a_wrong_part(filled):
    """Two payloads change places: all checksums of bytes alone would agree with themselves."""
    filled.open()
    places = filled.store._contents.table.all().place[:2]
    filled.store.close()
    path, shape = filled.path / "slab-00000.kv", filled.shape
    content = bytearray(path.read_bytes())
    first, second = (
        slice(shape.place_offset(p) + PAGE_BYTES, shape.place_offset(p) + shape.record_bytes) for p in places.tolist()
    )
    content[first], content[second] = content[second], content[first]
    path.write_bytes(content)
    filled.open()
    assert len(judged(filled)) == 2


def test_an_old_copy_of_a_record_is_not_served(rig):
    store = rig()
    store.put([1], [0], payload_of(1, seed=1))
    store.store.close()
    before = (store.path / "slab-00000.kv").read_bytes()
    store.open()
    store.put([1], [0], payload_of(1, seed=2))
    store.store.close()
    store.open()
    new = int(store.store._contents.table.all().place[0])
    store.store.close()
    old = 0
    assert new != old
    content = bytearray((store.path / "slab-00000.kv").read_bytes())
    at, length = store.shape.place_offset(new), store.shape.record_bytes
    content[at : at + length] = before[store.shape.place_offset(old) :][:length]
    (store.path / "slab-00000.kv").write_bytes(content)
    store.open()
    ok, _ = store.get([1], [0])  # the index says generation 2; only generation 1 is there
    # The scan finds it as the newest that is left: it is that record, whole, as it was once acknowledged.
    assert ok.all() == bool(store.store._contents.table.records)
    assert store.store.stats.notices


def test_a_truncated_slab_loses_only_what_was_cut(filled):
    shape = filled.shape
    os.truncate(filled.path / "slab-00001.kv", shape.place_offset(3) + PAGE_BYTES + 100)
    filled.open()
    lost = judged(filled)
    assert len(lost) == shape.places - 3
    assert not filled.store.holds(np.array([key for key, _ in lost], np.uint64), np.array([at for _, at in lost], np.int32)).any()
    kinds = [damage.what.split()[0] for damage in filled.store.verify()]
    assert sorted(kinds) == ["missing"] * len(lost) + ["slab"]
    free = filled.store._contents._space.free
    assert filled.put(range(50, 50 + free), [0] * free, payload_of(free)).all()  # the cut part is used again
    ok, _ = filled.get(range(50, 50 + free), [0] * free)
    assert ok.all()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("index", [True, False])
def test_a_deleted_slab_loses_only_its_own(filled, number, index):
    (filled.path / f"slab-{number:05}.kv").unlink()
    if not index:
        (filled.path / "index.sqlite").unlink()
    filled.open()
    assert len(judged(filled)) == filled.shape.places
    assert len(filled.store.stats.damage) == (filled.shape.places if index else 0)
    assert filled.put(range(50, 57), [0] * 7, payload_of(7)).all()
    filled.store.check()
    filled.reopen()
    assert len(judged(filled)) == filled.shape.places


def test_an_older_index_put_back_is_not_believed(rig):
    store = rig()
    store.put([1, 2], [0, 0], payload_of(2))
    store.store.close()
    old = (store.path / "index.sqlite").read_bytes()
    store.open()
    store.store.forget(np.array([2], np.uint64))
    store.put([3, 4], [0, 0], payload_of(2, seed=3))
    store.store.close()
    (store.path / "index.sqlite").write_bytes(old)
    store.open()
    assert any("older than the data" in notice for notice in store.store.stats.notices)
    ok, payload = store.get([1, 3, 4], [0, 0, 0])
    assert ok.all()
    assert (payload[1:] == payload_of(2, seed=3)).all()


def test_an_index_that_misleads_is_found_out_by_the_first_wrong_read(rig):
    """Index and mark of an earlier moment, put back together: only the headers can tell."""
    store = rig()
    store.put([1, 2], [0, 0], payload_of(2))
    store.store.close()
    old = {name: (store.path / name).read_bytes() for name in ("index.sqlite", "clean")}
    store.open()
    store.store.forget(np.array([1, 2], np.uint64))
    store.put([3], [0], payload_of(1, seed=3))
    store.put([1], [0], payload_of(1, seed=4))
    store.store.close()
    for name, content in old.items():
        (store.path / name).write_bytes(content)
    store.open()
    assert store.store._contents.hinted
    ok, payload = store.get([1], [0])
    assert ok.all()
    assert (payload == payload_of(1, seed=4)).all()
    assert any("contradicts" in notice for notice in store.store.stats.notices)
    ok, payload = store.get([3], [0])
    assert ok.all()
    assert (payload == payload_of(1, seed=3)).all()
    store.store.check()


@pytest.mark.parametrize("change", ["version", "store", "rows", "text"])
def test_an_index_of_another_version_is_rebuilt(filled, change):
    import sqlite3
    from contextlib import closing

    path = filled.path / "index.sqlite"
    if change == "text":
        path.write_bytes(b"this is no database" * 500)
    else:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                {
                    "version": "update meta set value = '999' where name = 'format'",
                    "store": "update meta set value = '1' where name = 'identity'",
                    "rows": "update records set layer = 1 - layer where layer < 2",
                }[change]
            )
    filled.open()
    assert len(filled.store.stats.notices) == 1
    assert not judged(filled)
    filled.reopen()
    assert filled.store.stats.notices == []
    assert not judged(filled)


def test_a_store_of_another_format_is_refused(filled):
    import xxhash

    path = filled.path / "slab-00000.kv"
    content = bytearray(path.read_bytes())
    content[8] = 2
    content[PAGE_BYTES - 8 : PAGE_BYTES] = xxhash.xxh3_64_intdigest(bytes(content[: PAGE_BYTES - 8])).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(StoreError, match="format is 2"):
        filled.open()
    content[8] = 1


def test_a_directory_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "store").mkdir()
    content = np.random.default_rng(0).bytes(64 << 10)
    (tmp_path / "store" / "slab-00000.kv").write_bytes(content)
    with pytest.raises(StoreError, match="says what it is"):
        Rig(tmp_path / "store")
    assert (tmp_path / "store" / "slab-00000.kv").read_bytes() == content


@pytest.mark.parametrize("held", [0, 10_000, 64 << 10])
def test_a_slab_that_was_only_half_made_is_finished(filled, held):
    """As a process leaves it that is killed between creating the file and writing its superblock."""
    (filled.path / "slab-00003.kv").write_bytes(bytes(held))
    filled.open()
    assert not judged(filled)
    assert filled.store.verify() == []
    places = filled.shape.places
    assert filled.put(range(50, 50 + places), [0] * places, payload_of(places)).all()
    filled.reopen()
    assert filled.store.verify() == []


def test_gc_writes_damaged_superblocks_again(filled):
    flip(filled.path / "slab-00001.kv", 77)
    filled.open()
    assert [damage.what for damage in filled.store.verify()] == ["superblock"]
    filled.store.keep_only(np.array(KEYS, np.uint64))
    filled.reopen()
    assert filled.store.verify() == []


CHILD = """
import os, sys
import numpy as np
from kvpager.slab import SlabStore

path, seed = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(seed)
store = SlabStore(path, parts=2, part_bytes=6000, layers=2, fingerprint="k", slab_bytes=256 << 10, capacity_bytes=16 << 20)
memory = np.zeros((40, 6000), np.uint8)
done, waiting, free = None, {}, [list(range(first, first + 20)) for first in (0, 20)]
print("open", flush=True)
while True:
    slots = free.pop()
    keys = store.new_keys(5)
    for number, key in enumerate(keys.tolist()):
        memory[slots[4 * number : 4 * number + 4]] = np.random.default_rng(key).integers(0, 256, (4, 6000), np.uint8)
    layers = np.tile(np.array([0, 1], np.int32), 5)
    ticket = store.write(keys.repeat(2), layers, memory, np.array(slots, np.int32).reshape(10, 2))
    waiting[ticket] = keys, slots
    while not free:
        for ticket, ok in store.wait([*waiting][:1], 1.0):
            done, slots = waiting.pop(ticket)
            free.append(slots)
            print("".join(f"+{key}\\n" for key, good in zip(done.tolist(), ok.reshape(5, 2).all(1)) if good), end="", flush=True)
    if rng.random() < 0.1:
        store.sync()
    if done is not None and rng.random() < 0.5:
        gone, done = done[:4], None
        print("".join(f"-{key}\\n" for key in gone.tolist()), end="", flush=True)
        store.forget(gone)
"""


@pytest.mark.parametrize("cycles", [20, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_what_was_acknowledged_survives_kill_9(tmp_path, cycles):
    rng = np.random.default_rng(cycles)
    path, held = tmp_path / "store", set()
    served = 0
    for cycle in range(cycles):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(cycle)], stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "open\n"
        for _ in range(int(rng.integers(1, 40))):
            line = child.stdout.readline()
            apply(held, line)
        os.sched_yield()
        child.kill()
        for line in child.stdout.read().split("\n")[:-1]:  # a line is whole if it ends
            apply(held, line)
        child.wait()
        child.stdout.close()
        store = Rig(path, parts=2, part_bytes=6000, layers=2, fingerprint="k", slab_bytes=256 << 10, capacity_bytes=16 << 20)
        keys = sorted(held)
        ok, payload = store.get(np.repeat(np.array(keys, np.uint64), 2), [0, 1] * len(keys))
        assert ok.all(), f"cycle {cycle}: {np.count_nonzero(~ok)} units of {ok.size} are lost"
        for number, key in enumerate(keys):
            expected = np.random.default_rng(key).integers(0, 256, (4, 6000), np.uint8)
            assert (payload[2 * number : 2 * number + 2].reshape(4, 6000) == expected).all()
        served += len(keys)
        assert store.store.verify() == []
        store.store.check()
        held = set(keys[-50:])
        store.store.keep_only(np.array(sorted(held), np.uint64))
        store.store.close()
    assert served > 10 * cycles


def apply(held, line):
    if line.startswith("+"):
        held.add(int(line[1:]))
    elif line.startswith("-"):
        held.discard(int(line[1:]))


@pytest.mark.parametrize("seed", range(15))
def test_what_was_synced_survives_a_power_cut(tmp_path, seed):
    """Random pages and names of what was not synced are lost, and the index falls back to any earlier state."""
    rng = np.random.default_rng(seed)
    files = LosingFiles()
    store = Rig(tmp_path / "store", files=files, capacity_bytes=6 * (64 << 10))
    durable, acknowledged, indexes, every = {}, {}, [], {}
    for number in range(int(rng.integers(2, 14))):
        keys = rng.choice(12, 3, replace=False).tolist()
        if number and rng.random() < 0.3:
            store.store.forget(np.array(keys, np.uint64))
            acknowledged = {record: payload for record, payload in acknowledged.items() if record[0] not in keys}
            durable = {record: payload for record, payload in durable.items() if record[0] not in keys}
        else:
            payload = payload_of(3, seed=100 * seed + number)
            layer = int(rng.integers(LAYERS))
            try:
                assert store.put(keys, [layer] * 3, payload).all()
            except StorageFull:
                continue
            for key, content in zip(keys, payload, strict=True):
                acknowledged[key, layer] = content
                every.setdefault((key, layer), []).append(content)
        if rng.random() < 0.4:
            store.store.sync()
            durable = dict(acknowledged)
            indexes.append({path: path.read_bytes() for path in store.path.glob("index.sqlite*")})
    store.crash()
    files.power_cut(rng)
    if indexes and rng.random() < 0.5:
        for path in store.path.glob("index.sqlite*"):
            path.unlink()
        for path, content in indexes[rng.integers(len(indexes))].items():
            path.write_bytes(content)
    store.settings["files"] = Files()
    store.open()
    records = [(key, layer) for key in range(12) for layer in range(LAYERS)]
    ok, payload = store.get([key for key, _ in records], [layer for _, layer in records])
    for record, good, content in zip(records, ok.all(1), payload, strict=True):
        if good:
            assert any((content == once).all() for once in every[record]), "something was served that was never written"
        if record in durable:
            assert good, f"{record} was durable and is lost"
            newer = every[record][[(durable[record] == once).all() for once in every[record]].index(True) :]
            assert any((content == once).all() for once in newer), f"{record} fell back behind what was durable"
    store.store.check()
    store.store.close()


def test_an_old_mark_does_not_come_back_beside_an_old_index(tmp_path):
    """Names of removed files come back with a power cut, unless their folder was synced."""
    files = LosingFiles()
    store = Rig(tmp_path / "store", files=files)
    store.put([1], [0], payload_of(1))
    store.store.sync()
    old = {path: path.read_bytes() for path in store.path.glob("index.sqlite*")}
    store.put([2], [0], payload_of(1, seed=2))
    store.store.sync()
    store.crash()
    assert not files.removed
    assert not files.created
    for path in store.path.glob("index.sqlite*"):
        path.unlink()
    for path, content in old.items():
        path.write_bytes(content)
    store.open()
    assert store.store.holds(np.array([1, 2], np.uint64), np.zeros(2, np.int32)).all()
    store.store.close()


def test_a_bug_in_a_thread_is_raised_where_the_answer_is_asked_for(rig, monkeypatch):
    store = rig()
    store.put([1], [0], payload_of(1))

    def broken(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("kvpager.slab.writes.write_fully", broken)
        with pytest.raises(ZeroDivisionError):
            store.put([2], [0], payload_of(1))
    store.store.check()
    assert store.store.holds(np.array([1, 2], np.uint64), np.zeros(2, np.int32)).tolist() == [True, False]
    assert store.put([2], [0], payload_of(1)).all()


def test_a_full_disk_leaves_the_store_readable(rig):
    files = RefusingFiles()
    store = rig(files=files)
    places = store.shape.places
    payload = payload_of(places + 1)
    store.put(range(places), [0] * places, payload[:places])
    files.refuse["allocate"] = errno.ENOSPC
    before = sorted(path.name for path in store.path.iterdir())
    with pytest.raises(StorageFull, match="free disk space"):
        store.put([90, 91], [0, 0], payload[:2])
    assert sorted(path.name for path in store.path.iterdir() if path.name != "clean") == [n for n in before if n != "clean"]
    assert not store.store.holds(np.array([90, 91], np.uint64), np.zeros(2, np.int32)).any()
    ok, got = store.get(range(places), [0] * places)
    assert ok.all()
    assert (got == payload[:places]).all()
    store.store.forget(np.array([0], np.uint64))
    assert store.put([90], [0], payload[places:]).all()
    store.reopen()
    ok, got = store.get([90], [0])
    assert ok.all()
    assert (got == payload[places:]).all()


def test_a_disk_full_at_the_start_says_so(tmp_path):
    with pytest.raises(StorageFull, match="cannot grow"):
        Rig(tmp_path / "store", files=RefusingFiles(allocate=errno.ENOSPC))
    Rig(tmp_path / "store").store.close()  # nothing is left that would be in the way


def test_a_failed_write_is_not_acknowledged(rig):
    files = RefusingFiles()
    store = rig(files=files)
    store.put([1], [0], payload_of(1))
    files.refuse["write"] = errno.EIO
    assert not store.put([2, 1], [0, 1], payload_of(2)).any()
    del files.refuse["write"]
    assert store.store.stats.io_errors
    assert store.store.holds(np.array([1, 2, 1], np.uint64), np.array([0, 0, 1], np.int32)).tolist() == [True, False, False]
    store.store.check()
    assert store.put([2], [0], payload_of(1)).all()


def test_a_failed_read_is_not_served(rig):
    files = RefusingFiles()
    store = rig(files=files)
    store.put([1], [0], payload_of(1))
    files.refuse["read"] = errno.EIO
    ok, _ = store.get([1], [0])
    assert not ok.any()
    assert store.store.stats.io_errors
    del files.refuse["read"]
    ok, _ = store.get([1], [0])
    assert ok.all()


def test_a_disk_that_will_not_sync_is_reported(rig):
    files = RefusingFiles()
    store = rig(files=files)
    store.put([1], [0], payload_of(1))
    files.refuse["sync"] = errno.EIO
    with pytest.raises(StoreError, match="durable"):
        store.store.sync()
    del files.refuse["sync"]


def test_a_read_only_directory_is_refused(tmp_path):
    for number in (errno.EROFS, errno.EACCES):
        with pytest.raises(StoreError, match="cannot be written"):
            Rig(tmp_path / "store", files=RefusingFiles(open=number))


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        Rig(tmp_path / "store")


def test_a_second_process_is_refused(rig):
    store = rig()
    store.put([1], [0], payload_of(1))
    code = (
        "import sys\nfrom kvpager.errors import StoreError\nfrom kvpager.slab import SlabStore\n"
        "shape = {'parts': 2, 'part_bytes': 512, 'layers': 3, 'fingerprint': 'f', 'slab_bytes': 65536}\n"
        "try: SlabStore(sys.argv[1], **shape, capacity_bytes=1 << 20)\n"
        "except StoreError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=True)
    assert "in use by another process" in done.stdout
    with pytest.raises(StoreError, match="in use"):  # a second opening in this process, too
        Rig(store.path)
    store.store.close()
    done = subprocess.run([sys.executable, "-c", code, str(store.path)], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_where_there_is_no_o_direct_it_works_with_a_notice(memory_folder, tmp_path, monkeypatch):
    if memory_folder == tmp_path:  # no tmpfs here: a file layer that says so stands in
        monkeypatch.setattr(Files, "direct_works", lambda *_: False)
    store = Rig(memory_folder / "store")
    payload = payload_of(RECORDS)
    assert store.put(KEYS, LAYER, payload).all()
    # Newer kernels know O_DIRECT on tmpfs: then there is nothing to say.
    assert ["O_DIRECT" in notice for notice in store.store.stats.notices] == [True] * (not store.store._contents.folder.direct)
    store.reopen()
    ok, got = store.get(KEYS, LAYER)
    assert ok.all()
    assert (got == payload).all()
    store.store.close()
