"""Tier 3 over a store: the contract of a tier, whole records, keys, and units that are lost."""

import numpy as np
import pytest
from tests.stores import GatedFiles

from kvpager.core import DRAM, HBM, NVME, STAGE, Move, UnitTable
from kvpager.errors import InvariantError, StorageFull, TierBusy
from kvpager.slab import SlabStore
from kvpager.tiers.arena import Arena
from kvpager.tiers.base import TIERS
from kvpager.tiers.slab import SlabTier

LAYERS, HEADS, UNIT_BYTES = 2, 2, 512


class Setup:
    """A table of blocks, their bytes in an arena, and a tier."""

    def __init__(self, path, blocks=4, granularity="head", files=None, **settings):
        self.table = UnitTable(LAYERS, HEADS, 4, UNIT_BYTES, granularity)
        self.seq = self.table.new_sequence()
        self.units = self.table.open_many(self.seq, blocks)
        heads, length = self.table.heads_per_layer, self.table.unit_bytes
        shape = {"parts": heads, "part_bytes": length, "layers": LAYERS, "fingerprint": "f", "slab_bytes": 64 << 10}
        self.store = SlabStore(path, **{**shape, "capacity_bytes": 256 << 10, "files": files, **settings})
        self.arena = Arena(3 * len(self.units), length)
        self.arena.memory[: len(self.units)] = np.random.default_rng(0).integers(0, 256, (len(self.units), length), np.uint8)
        self.tier = SlabTier(self.table, self.store, self.arena)
        self.moves, self.files = 0, files

    def move(self, units, src, dst, why, slots):
        self.moves += 1
        self.tier.submit(Move(self.moves, np.array(units, np.int32), src, dst, why), np.array(slots, np.int32))
        return self.moves

    def backup(self, units):
        move = self.move(units, HBM, NVME, "backup", units)
        [done] = self.tier.wait([move], 30)
        assert done.move == move
        return done

    def demand(self, units, why="demand"):
        """Read `units` into the free end of the arena; return the answer and what came."""
        slots = len(self.units) + np.arange(len(units), dtype=np.int32)[::-1]
        move = self.move(units, NVME, STAGE, why, slots)
        [done] = self.tier.wait([move], 30)
        return done, self.arena.memory[slots]


@pytest.fixture
def setup(tmp_path):
    made = []

    def make(**settings):
        made.append(Setup(tmp_path / f"store{len(made)}", **settings))
        return made[-1]

    yield make
    for one in made:
        if one.files is not None and hasattr(one.files, "gate"):
            one.files.gate.set()  # a test that failed must not hang
        one.store.close()
        one.arena.close()


def test_it_is_found_by_name():
    assert TIERS["slab"] is SlabTier
    assert (SlabTier.number, SlabTier.align_bytes) == (3, 4096)


@pytest.mark.parametrize("granularity", ["head", "layer"])
def test_what_was_backed_up_comes_back(setup, granularity):
    one = setup(granularity=granularity)
    rng = np.random.default_rng(1)
    done = one.backup(rng.permutation(one.units))
    assert done.ok.all()
    assert done.payload_bytes == len(one.units) * one.table.unit_bytes
    assert one.tier.used_bytes() == done.payload_bytes
    for _ in range(3):
        asked = rng.permutation(one.units)[: len(one.units) // 2]
        done, came = one.demand(asked)
        assert done.ok.all()
        assert (came == one.arena.memory[asked]).all()
    one.demand(one.units[:1], "prefetch")
    assert one.tier.written_units == {"backup": len(one.units)}
    assert one.tier.read_units == {"demand": 3 * (len(one.units) // 2), "prefetch": 1}
    assert len(one.tier.lost) == 0
    one.tier.check()


def test_answers_are_in_the_order_of_the_units(setup):
    one = setup()
    one.backup(one.units[:8])
    # Damage block 0, layer 1, head 0 on disk: unit 2.
    place = int(one.store._contents.table.find(one.tier.keys_of(np.zeros(1, np.int32)), np.ones(1, np.int32))[0])
    with open(one.store._contents.folder.path / "slab-00000.kv", "r+b") as slab:
        slab.seek(one.store.shape.place_offset(place) + 4096 + 7)
        byte = slab.read(1)[0]
        slab.seek(-1, 1)
        slab.write(bytes([byte ^ 1]))
    asked = np.array([7, 2, 0, 3], np.int32)
    done, came = one.demand(asked)
    assert done.ok.tolist() == [True, False, True, True]
    assert done.payload_bytes == 3 * UNIT_BYTES
    assert (came[done.ok] == one.arena.memory[asked[done.ok]]).all()
    assert one.tier.lost.tolist() == [2]


def test_reading_what_was_never_written_breaks_law_10(setup):
    one = setup()
    one.backup(one.units[:4])
    with pytest.raises(InvariantError, match="law 10"):
        one.demand(one.units[2:6])
    assert one.tier.read_units == {}


def test_half_a_record_is_refused(setup):
    one = setup()
    for units in ([0], [0, 1, 2], [1, 2], [0, 1, 2, 4]):
        with pytest.raises(InvariantError, match="whole records"):
            one.move(units, HBM, NVME, "backup", units)
    assert one.tier.used_bytes() == 0


def test_a_move_between_other_tiers_is_refused(setup):
    with pytest.raises(InvariantError, match="concern"):
        setup().move([0, 1], HBM, DRAM, "demote", [0, 1])


def test_a_store_of_another_shape_is_refused(setup):
    one = setup()
    with pytest.raises(InvariantError, match="cannot hold"):
        SlabTier(UnitTable(LAYERS + 1, HEADS, 4, UNIT_BYTES), one.store, one.arena)


def test_submit_never_waits_and_a_full_queue_is_busy(setup):
    files = GatedFiles()
    one = setup(files=files, queue_bytes=2 * 8192)
    files.gate.clear()
    moves = [one.move(units, HBM, NVME, "backup", units) for units in one.units[:4].reshape(2, 2)]
    with pytest.raises(TierBusy):
        one.move(one.units[4:6], HBM, NVME, "backup", one.units[4:6])
    assert not files.gate.is_set()
    assert one.tier.poll() == []
    assert one.tier.wait(moves, 0.01) == []
    assert one.tier.written_units == {"backup": 4}
    files.gate.set()
    assert sorted(done.move for done in one.tier.wait(moves, 30)) == moves
    one.backup(one.units[4:6])


def test_poll_returns_each_answer_once(setup):
    one = setup()
    moves = {one.move(units, HBM, NVME, "backup", units) for units in one.units[:8].reshape(4, 2)}
    seen = []
    while len(seen) < 4:
        seen += one.tier.poll()
    assert {done.move for done in seen} == moves
    assert one.tier.poll() == []
    assert one.tier.wait(sorted(moves), 0.01) == []


def test_a_full_store_changes_nothing(setup):
    one = setup(blocks=20, capacity_bytes=64 << 10)
    with pytest.raises(StorageFull):
        one.backup(one.units)
    assert one.tier.used_bytes() == 0
    assert one.tier.written_units == {}
    assert one.backup(one.units[:4]).ok.all()


def test_a_block_goes_with_its_last_unit(setup):
    one = setup()
    one.backup(one.units)
    held = one.tier.used_bytes()
    key = one.tier.keys_of(np.array([1], np.int32))
    one.tier.forget(one.units[4:7])
    assert one.tier.used_bytes() == held
    one.tier.forget(one.units[7:8])
    assert one.tier.used_bytes() == held - 4 * UNIT_BYTES
    assert not one.store.holds(key, np.zeros(1, np.int32)).any()
    assert one.tier.keys_of(np.array([0, 1, 900], np.int32)).astype(bool).tolist() == [True, False, False]
    one.tier.check()


def test_a_session_hands_its_blocks_over_and_takes_them_up_again(setup):
    one = setup()
    one.backup(one.units)
    blocks = np.arange(4, dtype=np.int32)
    keys = one.tier.keys_of(blocks)
    one.tier.adopt(blocks, keys)  # parked: the records outlive the units
    one.tier.forget(one.table.free(one.seq))
    assert one.store.holds(keys, np.zeros(4, np.int32)).all()
    resumed = one.table.open_many(one.table.new_sequence(), 4)
    one.tier.adopt(resumed[:: one.table.units_per_block] // one.table.units_per_block, keys)
    done, came = one.demand(resumed)
    assert done.ok.all()
    assert (came == one.arena.memory[: len(resumed)]).all()


def test_a_record_that_is_gone_is_lost_not_a_bug(setup):
    """A session names a key whose slab was deleted."""
    one = setup()
    blocks = np.zeros(1, np.int32)
    one.tier.adopt(blocks, np.array([12345], np.uint64))
    done, _ = one.demand(one.units[:4])
    assert not done.ok.any()
    assert one.tier.lost.tolist() == [0, 1, 2, 3]
