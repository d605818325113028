"""What breaks: bits, files, disks, processes. Nothing wrong is served, nothing acknowledged is lost, nobody waits too long."""

import errno
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.store.blocks import block_of, conserved, crash, flip, read
from tests.stores import GatedFiles, LosingFiles, RefusingFiles, WaywardFiles

from kvpager import store as block_store
from kvpager.errors import BadInput, StoreError
from kvpager.slab.files import Files

LENGTHS = {b"%d" % number: [100, 9000, 40_000][number % 3] for number in range(12)}
BLOCKS = {key: block_of(length, int(key)) for key, length in LENGTHS.items()}


@pytest.fixture
def filled(made, tmp_path):
    """The folder of a closed store with twelve blocks of three sizes."""
    store = made("filled", capacity="4MiB")
    assert all(store.put(key, payload) for key, payload in BLOCKS.items())
    store.close()
    return tmp_path / "filled"


def judged(store):
    """Read everything; whatever is served is right; return what is not served. The store goes on."""
    lost = []
    for key, payload in BLOCKS.items():
        buffer = bytearray(len(payload))
        if store.get(key, buffer):
            assert buffer == payload, "wrong bytes were served"
        else:
            assert not store.contains(key)  # no positive answer for what cannot be read
            lost.append(key)
    assert store.put(b"new", b"payload")
    assert read(store, b"new") == b"payload"
    assert conserved(store)
    for key in lost:
        assert store.put(key, BLOCKS[key])
        assert read(store, key) == BLOCKS[key]
    return lost


@pytest.mark.parametrize("kind", ["payload", "header", "superblock", "index", "marker"])
@pytest.mark.parametrize("with_index", [True, False])
def test_flipped_bits_are_never_served(filled, made, tmp_path, kind, with_index):
    rng, refusals = np.random.default_rng(0), []
    for number in range(4):
        name = f"copy{number}"
        shutil.copytree(filled, tmp_path / name)
        shelf = tmp_path / name / "size-00012288"
        slab = shelf / "slab-00000.kv"
        place = 4096 + 16384 * int(rng.integers(3))
        where = {
            "payload": (slab, place + 4096 + int(rng.integers(9000))), "header": (slab, place + int(rng.integers(200))),
            "superblock": (slab, int(rng.integers(200))), "index": (shelf / "index.sqlite", int(rng.integers(8192))),
            "marker": (tmp_path / name / "store.json", int(rng.integers(60))),
        }[kind]  # fmt: skip
        flip(*where)
        if not with_index and kind != "index":
            (shelf / "index.sqlite").unlink()
        try:
            store = made(name, 4 << 20)
        except StoreError as refusal:
            refusals.append(str(refusal))
            continue
        lost = judged(store)
        stats = store.stats()
        assert len(lost) <= {"payload": 1, "header": not with_index}.get(kind, 0)
        if kind == "payload":
            assert (stats["failed"], stats["quarantined"], stats["checksum_failures"]) == (1, 1, 1)
        store.close()
    assert not refusals or kind == "marker"
    assert all("format" in refusal for refusal in refusals)  # it says what another version would


def test_two_payloads_that_changed_places(filled, made):
    slab = filled / "size-00012288" / "slab-00000.kv"
    content = bytearray(slab.read_bytes())
    first, second = (slice(4096 + 16384 * place + 4096, 4096 + 16384 * (place + 1)) for place in (0, 1))
    content[first], content[second] = content[second], content[first]
    slab.write_bytes(content)
    store = made("filled")
    assert len(judged(store)) == 2


def test_two_records_that_changed_places_are_found_again(filled, made):
    """Header and all: each is whole, and is what it says, only elsewhere."""
    slab = filled / "size-00012288" / "slab-00000.kv"
    content = bytearray(slab.read_bytes())
    first, second = (slice(4096 + 16384 * place, 4096 + 16384 * (place + 1)) for place in (0, 1))
    content[first], content[second] = content[second], content[first]
    slab.write_bytes(content)
    assert judged(made("filled")) == []


def swap(one, other):
    keep = one.with_name("keep")
    one.rename(keep)
    other.rename(one)
    keep.rename(other)


def test_slabs_that_changed_names(made, tmp_path):
    store = made("filled", capacity=640 << 10)
    assert all(store.put(key, payload) for key, payload in BLOCKS.items())
    store.close()
    folder = tmp_path / "filled" / "size-00040960"
    assert (folder / "slab-00001.kv").exists()
    swap(folder / "slab-00000.kv", folder / "slab-00001.kv")
    assert judged(made("filled")) == []


def test_slabs_of_two_sizes_that_changed_places_are_set_aside(filled, made):
    swap(filled / "size-00012288" / "slab-00000.kv", filled / "size-00040960" / "slab-00000.kv")
    store = made("filled")
    assert len(judged(store)) == 4
    stats = store.stats()
    assert sum("set aside" in notice for notice in stats["notices"]) == 2
    assert stats["set_aside_bytes"] > 100_000
    assert stats["disk_bytes"] <= stats["capacity_bytes"]
    assert store.sweep() > 100_000
    assert store.stats()["set_aside_bytes"] == 0


def test_a_truncated_slab_loses_only_what_was_cut(filled, made):
    slab = filled / "size-00012288" / "slab-00000.kv"
    slab.write_bytes(slab.read_bytes()[: 4096 + 2 * 16384 + 5000])
    assert judged(made("filled")) == [b"7"]


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("what", ["slab", "folder"])
def test_what_is_deleted_is_gone_and_nothing_else(filled, made, what, with_index):
    if not with_index:
        for index in filled.glob("size-*/index.sqlite"):
            index.unlink()
    folder = filled / "size-00012288"
    (folder / "slab-00000.kv").unlink() if what == "slab" else shutil.rmtree(folder)
    assert judged(made("filled")) == [b"1", b"4", b"7"] + [b"10"] * (what == "folder")  # a slab has three places


def test_an_older_index_is_found_out(made, tmp_path):
    """Index and mark of an earlier moment, together: the first read that fails makes the headers count."""
    store = made(capacity="4MiB")
    assert store.put(b"kept", block_of(9000, 1))
    assert store.put(b"gone", block_of(9000, 2))
    store.close()
    shelf = tmp_path / "store" / "size-00012288"
    old = {name: (shelf / name).read_bytes() for name in ("index.sqlite", "clean")}
    store = made()
    assert store.delete(b"gone")
    assert store.put(b"new", block_of(9000, 3))
    assert store.put(b"kept", block_of(9000, 4))
    store.close()
    for name, content in old.items():
        (shelf / name).write_bytes(content)
    store = made()
    for _ in range(2):
        assert read(store, b"gone") is None
        assert read(store, b"kept") == block_of(9000, 4)
        assert read(store, b"new") == block_of(9000, 3)
    assert conserved(store)


def test_headers_that_cannot_be_read_now_are_read_later(made, tmp_path):
    """The index misled, and the disk fails while the headers are looked at: a miss, and the store lives."""
    store = made(capacity="4MiB")
    assert store.put(b"kept", block_of(9000, 1))
    store.close()
    shelf = tmp_path / "store" / "size-00012288"
    old = {name: (shelf / name).read_bytes() for name in ("index.sqlite", "clean")}
    store = made()
    assert store.put(b"kept", block_of(9000, 4))
    assert store.flush()
    assert store.put(b"new", block_of(9000, 5))
    store.close()
    for name, content in old.items():
        (shelf / name).write_bytes(content)
    files = RefusingFiles()
    store = made(files=files, quarantine_s=0.1)
    files.refuse["read"] = errno.EIO
    assert not store.get(b"kept", bytearray(9000))
    assert not store.contains(b"new")
    files.refuse.clear()
    time.sleep(0.2)
    assert not store._backend._broken
    assert read(store, b"kept") == block_of(9000, 4)
    assert read(store, b"new") == block_of(9000, 5)
    assert conserved(store)


def test_what_cannot_be_wiped_since_the_disk_is_read_only_is_said(made):
    """The mark of a clean index must go before a header may: where that is refused, the deletion is not answered with yes."""
    files = RefusingFiles()
    store = made(files=files)
    assert store.put(b"k", b"payload")
    assert store.put(b"other", b"payload")
    assert store.flush()
    files.refuse["remove"] = errno.EROFS
    with pytest.raises(StoreError, match="overwritten"):
        store.delete(b"k")
    assert not store.contains(b"k")
    files.refuse.clear()
    assert read(store, b"other") == b"payload"
    assert store.put(b"k", b"new")
    assert read(store, b"k") == b"new"


@pytest.mark.parametrize("left", ["lock only", "blank slab", "short slab", "no folder of ours", "marker.new", "no marker"])
def test_what_a_killed_process_leaves_is_swept_or_finished(filled, made, left):
    new = filled / "size-00065536"
    if left in ("lock only", "blank slab", "short slab"):
        new.mkdir()
        (new / "lock").write_bytes(b"")
    if left in ("blank slab", "short slab"):
        (new / "slab-00000.kv").write_bytes(bytes(1 << 17 if left == "blank slab" else 100))
    if left == "no folder of ours":
        (filled / "size-777").mkdir()
    if left == "marker.new":
        (filled / "store.json.new").write_text("{")
    if left == "no marker":
        (filled / "store.json").unlink()
    store = made("filled", "4MiB")
    assert judged(store) == []
    assert store.put(b"of that size", block_of(65536))
    assert read(store, b"of that size") == block_of(65536)
    assert store.stats()["disk_bytes"] <= 4 << 20


def test_a_store_of_another_version_is_refused(filled, made):
    said = json.loads((filled / "store.json").read_text())
    (filled / "store.json").write_text(json.dumps({**said, "format": 2}))
    with pytest.raises(StoreError, match="format 2"):
        made("filled")


def test_a_full_disk(made):
    files = RefusingFiles()
    store = made(files=files)
    assert store.put(b"0", block_of(9000))
    files.refuse["allocate"] = errno.ENOSPC
    assert not store.put(b"another size", block_of(60_000))
    for number in range(20):  # what is on disk is used again
        assert store.put(b"%d" % number, block_of(9000, number))
        assert read(store, b"%d" % number) == block_of(9000, number)
    assert store.stats()["evicted"] > 5
    files.refuse.clear()
    assert store.put(b"another size", block_of(60_000))
    assert read(store, b"19") == block_of(9000, 19)
    assert conserved(store)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_read_only_directory_is_refused(made, number):
    with pytest.raises(StoreError, match="cannot be written"):
        made(files=RefusingFiles(open=number))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_writes_that_fail_are_not_acknowledged(made, number):
    files = RefusingFiles()
    store = made(files=files)
    assert store.put(b"k", b"old")
    files.refuse["write"] = number
    assert not store.put(b"k", b"new")
    assert not store.put(b"another", b"new")
    assert read(store, b"k") == b"old"
    assert not store.contains(b"another")
    with pytest.raises(StoreError, match="overwritten"):
        store.delete(b"k")
    assert not store.contains(b"k")
    files.refuse.clear()
    assert store.put(b"k", b"new")
    assert read(store, b"k") == b"new"
    assert store.stats()["unwritten"] == 2


def test_reads_that_fail_are_misses_and_the_block_comes_back(made):
    files = RefusingFiles()
    store = made(files=files, quarantine_s=0.5)
    assert store.put(b"k", b"payload")
    files.refuse["read"] = errno.EIO
    assert not store.get(b"k", bytearray(7))
    assert not store.contains(b"k")
    assert not store.get(b"k", bytearray(7))
    files.refuse.clear()
    stats = store.stats()
    assert (stats["hits"], stats["misses"], stats["failed"]) == (0, 1, 1)
    time.sleep(0.6)
    assert read(store, b"k") == b"payload"


def test_a_disk_that_will_not_sync(made):
    files = RefusingFiles()
    store = made(files=files)
    assert store.put(b"k", b"old")
    files.refuse["sync"] = errno.EIO
    with pytest.raises(StoreError, match="durable"):
        store.flush()
    for number in range(100):  # replaced ones cannot be let go
        assert store.put(b"k", b"%d" % number)
    assert read(store, b"k") == b"99"
    assert store.stats()["notices"]
    files.refuse.clear()
    assert store.flush()
    assert read(store, b"k") == b"99"


def test_a_disk_that_does_not_answer_makes_nobody_wait_longer_than_agreed(made):
    files = GatedFiles()
    store = made(files=files, quarantine_s=1.0, staging_bytes=16384)
    assert store.put(b"k", block_of(8000))
    files.read_gate.clear()
    buffers, begun = [bytearray(8000) for _ in range(3)], time.monotonic()
    for buffer in buffers:
        assert not store.get(b"k", buffer, deadline_s=0.2)
    assert time.monotonic() - begun < 5
    assert not store.contains(b"k")  # till it has been given time
    ticket = store.submit_get([b"k"], [buffers[0]])
    store.give_up(ticket)
    files.read_gate.set()
    time.sleep(1.1)
    assert buffers == [bytearray(8000)] * 3  # nothing is written into memory that was given up
    assert read(store, b"k") == block_of(8000)
    assert store.stats()["late"] >= 1
    assert conserved(store)


def test_a_buffer_of_a_put_that_was_given_up_is_its_callers_again(made):
    files = GatedFiles()
    store = made(files=files, staging_bytes=16384)
    assert store.put(b"warm", bytes(8000))
    files.gate.clear()
    buffers = [bytearray(block_of(8000, number)) for number in range(6)]  # more than there are slots
    for number, buffer in enumerate(buffers):
        assert not store.put(b"%d" % number, buffer, deadline_s=0.1)
        buffer[:] = b"z" * 8000
    files.gate.set()
    assert store.put(b"last", b"x")
    for number in range(6):
        assert read(store, b"%d" % number) in (None, block_of(8000, number))


def test_a_store_whose_disk_hangs_is_closed_with_an_error_in_time(made):
    files = GatedFiles()
    store = made(files=files, deadline_s=0.5)
    assert store.put(b"k", b"x", deadline_s=30)
    files.gate.clear()
    assert not store.put(b"k", b"y")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="in time"):
        store.close()
    assert time.monotonic() - begun < 5
    files.gate.set()
    store._backend._thread.join(30)
    assert not store._backend._thread.is_alive()


def test_a_slow_disk_is_waited_for_as_long_as_agreed(made):
    """Each call takes a fifth of a second: who waits longer is served, who waits less is back in time, and so is the next."""
    files = WaywardFiles(delay_s=0.2)
    store = made(files=files, quarantine_s=0.1, deadline_s=20)
    assert store.put(b"k", block_of(8000))
    assert read(store, b"k") == block_of(8000)
    begun = time.monotonic()
    assert not store.get(b"k", bytearray(8000), deadline_s=0.02)
    assert time.monotonic() - begun < 0.19
    time.sleep(0.3)
    assert read(store, b"k") == block_of(8000)
    assert (store.stats()["late"], store.stats()["hits"]) == (1, 2)
    assert conserved(store)


@pytest.mark.parametrize("seed", range(3))
def test_a_wayward_disk_costs_blocks_but_never_serves_wrong_ones(made, seed):
    """Calls fail, come late or move less than asked, at random, under several threads with short deadlines."""
    files = WaywardFiles(seed, errors=0.1, short=0.1, delay_s=0.02)
    store = made(capacity="1MiB", files=files, quarantine_s=0.05)
    held, wrong, late = {}, [], []

    def work(number):
        rng = np.random.default_rng([seed, number])
        for _ in range(60):
            key = b"%d-%d" % (number, rng.integers(8))  # each thread has its own, so that it knows what is the newest
            begun = time.monotonic()
            if rng.random() < 0.5:
                payload = block_of(int(rng.choice([100, 9000, 30_000])), int(rng.integers(1 << 30)))
                ok = store.put(key, payload, deadline_s=1.0)
                held[key] = [payload] if ok else [*held.get(key, [None]), payload]  # what was not acknowledged may be there
            elif (length := store.length(key, deadline_s=1.0)) is not None:
                buffer = bytearray(length)
                try:
                    if store.get(key, buffer, deadline_s=1.0) and buffer not in held[key]:
                        wrong.append(key)
                except BadInput:  # what was put late took its place meanwhile, and is of another length
                    pass
            late.extend(seconds for seconds in [time.monotonic() - begun] if seconds > 5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, late) == ([], [])
    assert files.failed > 10
    files.errors = files.short = files.delay_s = 0.0
    time.sleep(0.1)
    for key, payloads in held.items():
        assert read(store, key) in [None, *payloads]
    assert store.put(b"after", b"it goes on")
    assert read(store, b"after") == b"it goes on"
    assert store.stats()["hits"] > 10
    assert store.stats()["disk_bytes"] <= 1 << 20
    assert conserved(store)


def test_no_wall_clock_is_looked_at():
    """So that one that is set back changes nothing: neither pins nor quarantine nor deadlines. A log only states it."""
    paths = [path for path in Path(block_store.__file__).parent.rglob("*.py") if path.name != "eventlog.py"]
    sources = [path.read_text() for path in paths]
    assert len(sources) > 10
    assert not any(re.search(r"\btime\.time\(|datetime|\bst_mtime", text) for text in sources)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_flushed_survives_a_power_cut(tmp_path, seed):
    """Random pages and names of what was not synced are lost."""
    rng, files = np.random.default_rng(seed), LosingFiles()
    store = block_store.open(tmp_path / "store", 512 << 10, files=files)
    durable, every, deleted = {}, {}, set()
    for number in range(25):
        key = b"%d" % rng.integers(8)
        if rng.random() < 0.2:
            store.delete(key)
            deleted.add(key)
        else:
            payload = block_of([500, 9000][int(rng.integers(2))], 100 * seed + number)
            assert store.put(key, payload)
            every.setdefault(key, []).append(payload)
        if rng.random() < 0.2:
            assert store.flush()
            durable = {one: read(store, one) for one in every}
            deleted = set()
    crash(store)
    files.power_cut(rng)
    with block_store.open(tmp_path / "store", files=Files()) as store:
        for key, payloads in every.items():
            found = read(store, key)
            assert found is None or found in payloads
            if durable.get(key) is not None and key not in deleted:
                assert found is not None, "what was durable is lost"
                assert payloads.index(found) >= payloads.index(durable[key]), "it fell back behind what was durable"


CHILD = """
import sys
import numpy as np
from kvpager import store as block_store
from tests.store.blocks import block_of

path, seed = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(seed)
store = block_store.open(path, "64MiB")
print("open", flush=True)
number = 0
while True:
    key, length = f"{rng.integers(40)}", int(rng.choice([0, 3000, 20000]))
    print(f"? {key}", flush=True)
    if rng.random() < 0.2:
        store.delete(key.encode())
        print(f"- {key}", flush=True)
    else:
        number += 1
        assert store.put(key.encode(), block_of(length, 100000 * seed + number))
        print(f"+ {key} {length} {100000 * seed + number}", flush=True)
    if rng.random() < 0.05:
        store.flush()
"""


def told(child, lines):
    """The first `lines` lines of a child, and what else it had said when it was killed."""
    found = [child.stdout.readline() for _ in range(lines)]
    child.kill()
    found += [line + "\n" for line in child.stdout.read().split("\n")[:-1]]
    child.wait()
    child.stdout.close()
    return [line.split() for line in found]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cycles", [5, pytest.param(200, marks=pytest.mark.long)])
def test_kill_9(tmp_path, cycles):
    """What was acknowledged is there with its newest content, what was deleted is not; what was under way is either."""
    rng, held, served = np.random.default_rng(cycles), {}, 0
    for cycle in range(cycles):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "store"), str(cycle)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "open\n"
        doubtful = None
        for word, key, *what in told(child, int(rng.integers(1, 60))):
            if word == "?":
                doubtful = key
            else:
                doubtful = None
                held[key] = block_of(*map(int, what)) if word == "+" else None
        with block_store.open(tmp_path / "store") as store:
            for key, payload in held.items():
                found = read(store, key.encode())
                assert found == payload or key == doubtful, f"cycle {cycle}: block {key} is lost or old"
                served += found is not None
            if doubtful is not None:
                held[doubtful] = read(store, doubtful.encode())
            assert store.verify(60) == []
            assert conserved(store)
    assert served > 2 * cycles
