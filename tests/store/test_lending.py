"""Memory that is lent to the disk: the same bytes as those that are copied, and whose it is meanwhile."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.blocks import block_of, conserved, crash, flip, read
from tests.stores import GatedFiles

from kvpager import store as block_store
from kvpager.slab.files import Files, aligned

SIZE = 128 << 10


class CountingFiles(Files):
    """Counts the pieces of calls that are longer than a header."""

    def __init__(self):
        self.read, self.written = [], []

    def preadv(self, fd, buffers, offset):
        self.read += [address(np.frombuffer(one, np.uint8)) for one in buffers]
        return super().preadv(fd, buffers, offset)

    def pwritev(self, fd, buffers, offset):
        self.written += [address(np.frombuffer(one, np.uint8)) for one in buffers]
        return super().pwritev(fd, buffers, offset)


def address(memory):
    return memory.ctypes.data


def lendable(content):
    memory = aligned(len(content))
    memory[:] = np.frombuffer(content, np.uint8)
    return memory


BLOCK = st.tuples(st.sampled_from([0, 1, 4096, 65535, 65536, 70_000, SIZE]), st.sampled_from([0, 0, 512, 1]))


@settings(max_examples=25, deadline=None)
@given(blocks=st.lists(BLOCK, min_size=1, max_size=12), order=st.randoms(use_true_random=False), wary=st.booleans())
def test_lent_or_copied_it_is_the_same(tmp_path_factory, blocks, order, wary):
    """Any length, any alignment, in any order and company, with headers looked at (`wary`) or not."""
    path = tmp_path_factory.mktemp("lent") / "store"
    keys = [b"%d" % number for number in range(len(blocks))]
    payloads = [block_of(length, number) for number, (length, _) in enumerate(blocks)]
    with block_store.open(path, "256MiB") as store:
        memories = [lendable(bytes(skew) + payload)[skew:] for payload, (_, skew) in zip(payloads, blocks, strict=True)]
        assert store.put_many(keys, memories, lend=True).all()
        assert all(read(store, key) == payload for key, payload in zip(keys, payloads, strict=True))
        if wary:
            assert store.flush()
            crash(store)
        with block_store.open(path) if wary else store.of_tenant(b"") as reader:
            numbers = order.sample(range(len(blocks)), len(blocks))
            targets = [lendable(bytes(blocks[number][1] + blocks[number][0]))[blocks[number][1] :] for number in numbers]
            assert reader.get_many([keys[number] for number in numbers], targets, lend=True).all()
            assert reader.settle(0.0)
            assert [one.tobytes() for one in targets] == [payloads[number] for number in numbers]
            assert conserved(reader)


def test_what_is_lent_is_not_copied(made):
    """The disk reads into the caller's pages and writes from them; what does not fit a place, or no page, goes through ours."""
    files = CountingFiles()
    store = made(capacity="256MiB", files=files)
    memories = [lendable(block_of(SIZE, number)) for number in range(4)]
    keys = [b"%d" % number for number in range(4)]
    assert store.put_many(keys, memories, lend=True).all()
    assert {address(memory) for memory in memories} <= set(files.written)
    targets = [aligned(SIZE) for _ in keys]
    files.read.clear()
    assert store.get_many(keys, targets, lend=True).all()
    assert {address(memory) for memory in targets} <= set(files.read)
    assert all((target == memory).all() for target, memory in zip(targets, memories, strict=True))
    files.read.clear()
    assert store.get_many(keys, targets).all()
    assert not {address(memory) for memory in targets} & set(files.read)
    assert store.put(b"short", memories[0][:-1])
    files.read.clear()
    assert store.get_many([b"short"], [targets[0][:-1]], lend=True).all()
    assert address(targets[0]) not in files.read


def test_damage_is_found_in_lent_memory_too(made, tmp_path):
    store = made(capacity="256MiB", quarantine_s=0.0)
    memories = [lendable(block_of(SIZE, number)) for number in range(5)]
    keys = [b"%d" % number for number in range(5)]
    assert store.put_many(keys, memories, lend=True).all()
    store.close()
    record = SIZE + 4096
    flip(tmp_path / "store" / f"size-{SIZE:08}" / "slab-00000.kv", 4096 + 2 * record + 4096 + 77)
    store = made(capacity=0)
    targets = [aligned(SIZE) for _ in keys]
    ok = store.get_many(keys, targets, lend=True)
    assert np.count_nonzero(~ok) == 1
    assert all((target == memory).all() for target, memory, good in zip(targets, memories, ok, strict=True) if good)
    assert conserved(store)


@pytest.mark.parametrize("lend", [True, False])
def test_a_header_that_was_wiped_is_not_served_by_an_older_index(made, tmp_path, lend):
    """Index and mark from before a deletion name a place whose payload is whole and whose header is gone."""
    store = made(capacity="256MiB")
    memories = [lendable(block_of(SIZE, number)) for number in range(3)]
    assert store.put_many([b"0", b"1", b"2"], memories, lend=lend).all()
    store.close()
    shelf = tmp_path / "store" / f"size-{SIZE:08}"
    old = {name: (shelf / name).read_bytes() for name in ("index.sqlite", "clean")}
    store = made(capacity=0)
    assert store.delete(b"1")
    store.close()
    for name, content in old.items():
        (shelf / name).write_bytes(content)
    store = made(capacity=0)
    targets = [aligned(SIZE) for _ in range(3)]
    assert store.get_many([b"0", b"1", b"2"], targets, lend=lend).tolist() == [True, False, True]


@pytest.mark.parametrize("way", ["call", "ticket"])
def test_lent_memory_is_the_disks_till_it_settles(made, way):
    """A call is back at its deadline though the disk hangs; the memory is the caller's again only when the disk has let go."""
    files = GatedFiles()
    store = made(capacity="256MiB", files=files)
    memory = lendable(block_of(SIZE))
    assert store.put(b"k", memory)
    files.read_gate.clear()
    target, begun = aligned(SIZE), time.monotonic()
    if way == "call":
        assert not store.get_many([b"k"], [target], 0.2, lend=True).any()
    else:
        ticket = store.submit_get([b"k"], [target], lend=True)
        assert store.wait([ticket], 0.2) == []
        assert not store.give_up(ticket).any()
    assert not store.settle(0.1)
    assert time.monotonic() - begun < 5
    threading.Timer(0.3, files.read_gate.set).start()
    assert store.settle(30)
    assert (target == memory).all()  # it came late, and nobody else had the memory meanwhile
    assert store.settle(0.0)


def test_copied_memory_is_its_callers_though_another_call_lends(made):
    """What is copied is left alone after the deadline, in the same run of neighbours as a block that is read into lent memory."""
    files = GatedFiles()
    store = made(capacity="256MiB", files=files)
    payloads = [block_of(SIZE, number) for number in range(2)]
    assert store.put_many([b"0", b"1"], payloads).all()
    files.read_gate.clear()
    lent, copied = aligned(SIZE), aligned(SIZE)
    ticket = store.submit_get([b"0"], [lent], lend=True)
    assert not store.get(b"1", copied, deadline_s=0.2)
    files.read_gate.set()
    assert [ok.tolist() for _, ok in store.wait([ticket], 30)] == [[True]]
    time.sleep(0.2)
    assert not copied.any()
    assert lent.tobytes() == payloads[0]


def test_a_put_that_was_given_up_never_makes_a_wrong_block(made):
    """Lent memory that changes while it is written is the caller's fault, and costs it the block, not the truth."""
    files = GatedFiles()
    store = made(capacity="256MiB", files=files)
    assert store.put(b"warm", block_of(SIZE, 9))
    files.gate.clear()
    memory = lendable(block_of(SIZE))
    assert not store.put_many([b"k"], [memory], None, 0.2, lend=True).any()
    memory[:] = 7
    files.gate.set()
    assert store.settle(30)
    assert store.put(b"after", b"x")
    assert read(store, b"k") in (None, block_of(SIZE))


def test_who_asks_the_owner_over_its_socket_may_lend_too(made):
    store = made(capacity="256MiB")
    payload, client, target = block_of(SIZE), made(capacity=0), aligned(SIZE)
    assert client.put_many([b"k"], [lendable(payload)], lend=True).all()
    assert client.get_many([b"k"], [target], lend=True).all()
    assert client.settle(0.0)
    assert target.tobytes() == payload == read(store, b"k")
