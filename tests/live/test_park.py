"""The shelf of parked sessions: what is written comes back, ids keep apart, and records end with the last who names them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvpager.errors import BadInput, StoreError
from kvpager.live.park import Parked, Shelf
from kvpager.slab.files import Files
from kvpager.slab.keys import BlockKeys

NONE = np.empty(0, np.int32)


class Disk:
    """Remembers who owns which keys."""

    def __init__(self):
        self.owned, self.given_up = [], []

    def adopt(self, blocks, keys):
        self.owned += keys.tolist()

    def disown(self, keys):
        self.given_up += keys.tolist()


def shelf_in(folder):
    return Shelf(SimpleNamespace(path=folder, disk=Disk()))


def parked(id, keys=(), **arrays):
    arrays = arrays or {"open": torch.arange(6, dtype=torch.uint8).view(2, 3)}
    return Parked(id, "format=1", [5, 6, 7], 2, np.array(keys, np.uint64), None, arrays)


@pytest.fixture
def shelf(tmp_path):
    return shelf_in(tmp_path)


def test_what_is_parked_comes_back(shelf, tmp_path):
    arrays = {
        "codes": torch.tensor([1, 65535], dtype=torch.uint16), "mask": torch.tensor([True, False]), "none": torch.zeros(0, 3),
        "values": torch.randn(2, 3).bfloat16(), "part": torch.arange(9.0).view(3, 3)[:, 1],
    }  # fmt: skip
    keys = [0, 1, (1 << 64) - 1]
    shelf.write(parked("s", keys, **arrays), np.arange(3, dtype=np.int32))
    found = shelf_in(tmp_path).read("s")
    assert (found.id, found.tokens, found.cached, found.summary) == ("s", [5, 6, 7], 2, None)
    assert found.keys.tolist() == keys
    assert shelf._store.disk.owned == keys
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert torch.equal(found.arrays[name], array)
    assert "s" in shelf
    assert shelf.ids() == ["s"]


def test_ids_that_look_alike_keep_apart(shelf, tmp_path):
    """The files of one are never those of another, whatever dots their ids have."""
    ids = ["a", "a.json", "a.json.draft", "a.0123456789abcdef", "a.0123456789abcdef.safetensors", ".a", "..", "A-_."]
    for number, id in enumerate(ids):
        shelf.write(parked(id, [number]), NONE)
    for number, id in enumerate(ids):  # and again, which tidies up
        shelf.write(parked(id, [number], open=torch.zeros(number + 1)), NONE)
    assert shelf.ids() == sorted(ids)
    for number, id in enumerate(ids):
        assert shelf.read(id).keys.tolist() == [number]
        shelf.remove(id)
        assert id not in shelf
    assert list((tmp_path / "sessions").iterdir()) == []


def test_records_end_with_the_last_session_that_names_them(shelf):
    disk = shelf._store.disk
    shelf.write(parked("a", [1, 2, 3]), NONE)
    shelf.write(parked("b", [1, 2, 9]), NONE)
    assert disk.given_up == []
    shelf.write(parked("a", [1, 4]), NONE)
    assert disk.given_up == [3]
    shelf.remove("b")
    assert disk.given_up == [3, 2, 9]
    shelf.remove("a")
    assert disk.given_up == [3, 2, 9, 1, 4]
    shelf.remove("a")
    assert disk.given_up == [3, 2, 9, 1, 4]


def test_nothing_is_given_up_while_a_damaged_session_may_need_it(shelf, tmp_path):
    shelf.write(parked("a", [1, 2]), NONE)
    shelf.write(parked("b", [1, 2]), NONE)
    path = tmp_path / "sessions" / "b.json"
    path.write_bytes(path.read_bytes()[:-9])
    shelf.remove("a")
    assert shelf._store.disk.given_up == []
    with pytest.raises(StoreError, match=r"'b'.*damaged"):
        shelf.read("b")
    shelf.remove("b")
    assert shelf.ids() == []


def test_a_file_that_got_its_name_counts_though_a_later_step_failed(shelf):
    class Late(Files):
        """Fails after the second rename, which gives the session its name."""

        renamed = 0

        def rename(self, old, new):
            super().rename(old, new)
            self.renamed += 1

        def sync_folder(self, path):
            if self.renamed == 2:
                raise OSError(5, "Input/output error")
            super().sync_folder(path)

    shelf._files = Late()
    with pytest.raises(StoreError, match="cannot be parked"):
        shelf.write(parked("s", [7, 8]), np.arange(2, dtype=np.int32))
    assert shelf._store.disk.owned == [7, 8], "its records must outlive the table's blocks"
    assert shelf.read("s").keys.tolist() == [7, 8]


def test_ids_are_drawn_or_checked(shelf):
    drawn = {shelf.new_id(None) for _ in range(50)}
    assert len(drawn) == 50
    assert all(len(id) == 8 and int(id, 16) >= 0 for id in drawn)
    assert shelf.new_id("x" * 64) == "x" * 64
    shelf.write(parked("taken"), NONE)
    shelf.open["running"] = None
    with pytest.raises(BadInput, match="parked already"):
        shelf.new_id("taken")
    with pytest.raises(BadInput, match="open already"):
        shelf.new_id("running")
    for id in ("", "a/b", "../a", "a\n", "x" * 65):
        with pytest.raises(BadInput, match="letters, digits"):
            shelf.new_id(id)


def test_keys_are_disowned_where_the_table_holds_them_and_returned_where_not():
    keys = BlockKeys(units_per_block=2, heads_per_layer=1)
    keys.set(np.array([0, 3], np.int32), np.array([10, 11], np.uint64), borrowed=True)
    assert keys.disown(np.array([11, 12], np.uint64)).tolist() == [12]
    assert keys.forget(np.arange(8, dtype=np.int32)).tolist() == [11], "10 is still a session's"
