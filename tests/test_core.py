"""The nouns: geometry to the byte, and the table of units against a slow model of dictionaries."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpager.core import ALL_LAYERS, KVGeometry, LayerKV, Tick, UnitTable
from kvpager.errors import InvariantError

BLOCK_SIZE = 4


@dataclass
class Block:
    """One block in the slow model."""

    ids: list[int]
    number: int
    sealed: bool = False
    holders: set[int] = field(default_factory=set)


class TableMachine(RuleBasedStateMachine):
    """Random lives of sequences: every answer of `UnitTable` equals that of plain dictionaries."""

    @initialize(layers=st.integers(1, 3), heads=st.integers(1, 3), granularity=st.sampled_from(["head", "layer"]))
    def begin(self, layers, heads, granularity):
        self.layers = layers
        self.heads = heads if granularity == "head" else 1
        self.table = UnitTable(layers, heads, BLOCK_SIZE, 64, granularity)
        self.granularity = granularity
        self.whole_bytes = 64 * heads * layers
        self.next_id = 0
        self.blocks: list[Block] = []  # every block ever created
        self.sequences: dict[int, list[Block]] = {}

    def create(self, seq: int, number: int) -> Block:
        width = self.layers * self.heads
        block = Block(list(range(self.next_id, self.next_id + width)), number, holders={seq})
        self.next_id += width
        self.blocks.append(block)
        return block

    def drop(self, seq: int, blocks: list[Block]) -> list[int]:
        for block in blocks:
            block.holders.discard(seq)
        return sorted(unit for block in blocks if not block.holders for unit in block.ids)

    def pick(self, data) -> int:
        return data.draw(st.sampled_from(sorted(self.sequences)))

    @rule()
    def new_sequence(self):
        seq = self.table.new_sequence()
        assert seq not in self.sequences
        self.sequences[seq] = []

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), count=st.integers(0, 5))
    def open_blocks(self, data, count):
        seq = self.pick(data)
        mine = self.sequences[seq]
        new = [self.create(seq, len(mine) + i) for i in range(count)]
        mine.extend(new)
        got = self.table.open_many(seq, count)
        assert got.tolist() == [unit for block in new for unit in block.ids]
        assert got.dtype == np.int32

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), skew=st.sampled_from([-1, 1]))
    def refuse_out_of_order(self, data, skew):
        seq = self.pick(data)
        with pytest.raises(InvariantError, match="open blocks in order"):
            self.table.open(seq, len(self.sequences[seq]) + skew)

    @precondition(lambda self: any(self.sequences.values()))
    @rule(data=st.data())
    def seal(self, data):
        seq = data.draw(st.sampled_from([s for s, blocks in self.sequences.items() if blocks]))
        count = data.draw(st.integers(1, len(self.sequences[seq])))
        for block in self.sequences[seq][:count]:
            self.table.seal(np.array(block.ids, np.int32))
            block.sealed = True

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data):
        seq = self.pick(data)
        twin = self.table.fork(seq)
        assert twin not in self.sequences
        copied = []
        for block in self.sequences[seq]:
            if block.sealed:
                block.holders.add(twin)
                copied.append(block)
            else:
                copied.append(self.create(twin, block.number))
        self.sequences[twin] = copied

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data):
        seq = self.pick(data)
        mine = self.sequences[seq]
        tokens = data.draw(st.integers(0, (len(mine) + 1) * BLOCK_SIZE))
        kept = [block for block in mine if (block.number + 1) * BLOCK_SIZE <= tokens]
        gone = mine[len(kept) :]
        if gone and tokens % BLOCK_SIZE:
            cut = gone[0]
            if cut.sealed:  # immutable: the rest of it lives on under new ids
                kept.append(self.create(seq, cut.number))
            else:
                kept.append(cut)
                gone = gone[1:]
        freed = self.drop(seq, gone)
        self.sequences[seq] = kept
        assert sorted(self.table.truncate(seq, tokens).tolist()) == freed

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def free(self, data):
        seq = self.pick(data)
        assert sorted(self.table.free(seq).tolist()) == self.drop(seq, self.sequences.pop(seq))
        with pytest.raises(InvariantError, match="sequence"):
            self.table.blocks(seq)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def refuse_negative_crop(self, data):
        with pytest.raises(InvariantError, match="-1 tokens"):
            self.table.truncate(self.pick(data), -1)

    @invariant()
    def same_as_the_model(self):
        table = self.table
        assert table.size == self.next_id
        for block in self.blocks:
            ids = np.array(block.ids)
            assert (table.refs[ids] == len(block.holders)).all()
            assert (table.first_token[ids] == block.number * BLOCK_SIZE).all()
            assert (table.sealed[ids] == block.sealed).all()
            expected = [(layer, head) for layer in range(self.layers) for head in range(self.heads)]
            heads = [head if self.granularity == "head" else -1 for _, head in expected]
            assert table.layer[ids].tolist() == [layer for layer, _ in expected]
            assert table.kv_head[ids].tolist() == heads
        for seq, blocks in self.sequences.items():
            assert table.blocks(seq) == [block.ids[0] for block in blocks]

    @invariant()
    def layers_are_listed_in_order(self):
        for layer in range(self.layers):
            expected = [unit for unit in range(self.next_id) if self.table.layer[unit] == layer]
            assert self.table.of_layer(layer).tolist() == expected
        assert self.table.of_layer(ALL_LAYERS).tolist() == list(range(self.next_id))

    @invariant()
    def payload_adds_up(self):
        whole = len(self.table.of_layer(ALL_LAYERS)) * self.table.unit_bytes
        assert whole == len(self.blocks) * self.whole_bytes


TestUnitTable = TableMachine.TestCase


def test_a_tick_orders_by_step_and_then_by_layer():
    assert sorted([Tick(1, 0), Tick(0, 1), Tick(-1, 5), Tick(0, 0)]) == [Tick(-1, 5), Tick(0, 0), Tick(0, 1), Tick(1, 0)]


def test_a_70b_model_keeps_320_kib_a_token_and_5_mib_a_block():
    geometry = KVGeometry("llama-3-70b", "llama", 64, 2, (LayerKV(8, 128, 128),) * 80)
    assert geometry.kv_bytes_per_token == 320 * 1024
    assert geometry.kv_bytes(16) == 5 * 1024**2
    assert geometry.full_layers == tuple(range(80))


def test_windows_stop_growing():
    geometry = KVGeometry("mixed", "gemma3", 8, 2, (LayerKV(2, 64, 64, window_tokens=10), LayerKV(2, 64, 64)))
    per_layer = 2 * (64 + 64) * 2
    assert geometry.kv_bytes_per_token == 2 * per_layer
    assert geometry.kv_bytes(10) == 20 * per_layer
    assert geometry.kv_bytes(25) == (10 + 25) * per_layer
    assert geometry.full_layers == (1,)
