"""Tags beside records: found again whatever becomes of the index, and gone with what is wiped."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from kvpager.errors import StoreError
from kvpager.slab import SlabStore
from kvpager.slab.files import Files
from kvpager.slab.io import Workers
from kvpager.slab.tagged import TaggedStore
from kvpager.slab.transfer import Lender


class Callers(Lender):
    """Blocks of callers who have `memory`, without some who are gone, or are told what is read."""

    def __init__(self, memory, absent=()):
        self.memory, self.absent, self.found, self.lent = memory, absent, {}, set()

    def lend(self, number):
        return None

    def give_back(self, number):
        self.lent.remove(number)

    def copy(self, number, part):
        if self.memory is None:
            self.found[number] = part.copy()
        elif number not in self.absent:
            part[:] = self.memory[number]
        return number not in self.absent


@pytest.fixture
def opened(tmp_path):
    """Open tagged stores of the test's folder, on shared threads."""
    workers, stores = Workers(2, 1 << 20), []

    def make(tag_bytes=16):
        stores.append(TaggedStore(tmp_path / "tagged", 4096, tag_bytes, 64 << 10, "f", Files(), workers, lambda: None))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
    workers.close()


def put(store, count, absent=()):
    memory = np.random.default_rng(count).integers(0, 256, (count, 4096), np.uint8)
    tags = np.random.default_rng(7 + count).integers(0, 256, (count, 16), np.uint8)
    keys = store.new_keys(count)

    callers = Callers(memory, absent)
    [(_, ok)] = store.wait([store.put(keys, tags, callers)], 30)
    assert not callers.lent
    assert ok.tolist() == [number not in absent for number in range(count)]
    return keys, tags


def get(store, keys):
    """The blocks that were delivered, by number."""
    callers = Callers(None)
    [(_, ok)] = store.wait([store.get(keys, callers)], 30)
    assert sorted(callers.found) == np.flatnonzero(ok).tolist()
    return callers.found


def tags_by_key(store):
    records = store.all()
    return dict(zip(records.key.tolist(), records.tag.tolist(), strict=True))


@pytest.mark.parametrize("index", ["kept", "lost", "another tag"])
def test_tags_are_found_again(opened, tmp_path, index):
    store = opened()
    keys, tags = put(store, 5)
    gone = int(keys[2])
    store.wait([store.wipe(keys[2:3])], 30)
    store.close()
    path = tmp_path / "tagged" / "index.sqlite"
    if index == "lost":
        path.unlink()
    elif index == "another tag":
        with closing(sqlite3.connect(path)) as database, database:
            (blob,) = database.execute("select checksums from records where place = 0").fetchone()
            database.execute("update records set checksums = ? where place = 0", (blob[:-1] + bytes([blob[-1] ^ 1]),))
    store = opened()
    expected = dict(zip(keys.tolist(), tags.tolist(), strict=True))
    del expected[gone]
    assert tags_by_key(store) == expected
    memory, found = np.random.default_rng(5).integers(0, 256, (5, 4096), np.uint8), get(store, keys[::-1])
    assert {4 - number: payload.tolist() for number, payload in found.items()} == {
        number: memory[number].tolist() for number in (0, 1, 3, 4)
    }
    assert len(store.stats.notices) == (index != "kept")
    assert store.verify() == []


def test_what_is_not_filled_is_not_there_but_its_neighbours_are(opened, tmp_path):
    """In one run of neighbouring places: the place of the one that is not there has no header, and is free."""
    store = opened()
    free = store.free
    keys, _ = put(store, 5, absent=(1, 4))
    assert store.free == free - 3
    assert sorted(get(store, keys)) == [0, 2, 3]
    store.close()
    (tmp_path / "tagged" / "index.sqlite").unlink()
    store = opened()
    assert sorted(tags_by_key(store)) == sorted(keys[[0, 2, 3]].tolist())
    assert store.verify() == []


def test_a_store_without_tags_is_another_store(opened, tmp_path):
    store = opened()
    put(store, 1)
    store.close()
    with pytest.raises(StoreError, match="tag_bytes is 16, not 0"):
        SlabStore(
            tmp_path / "tagged", parts=1, part_bytes=4096, layers=1, fingerprint="f", capacity_bytes=64 << 10, slab_bytes=64 << 10
        )
    for wrong in (12, -8, 4096):
        with pytest.raises(StoreError, match="tag of"):
            opened(wrong)


def test_it_grows_only_as_far_as_it_may(opened):
    store = opened()
    places = store.free
    put(store, places)
    assert store.free == 0
    with pytest.raises(OSError, match="full"):
        put(store, 1)
    store.grow(1)
    put(store, 1)
    assert store.free == places - 1
