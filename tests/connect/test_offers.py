"""What of a prefix is offered to an engine: its beginning, as much as is worth fetching; and what is counted of that."""

import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager import store as block_store
from kvpager.connect.counts import COUNTERS, GATE_GAUGES, GAUGES, STORE_GAUGES
from kvpager.connect.offers import Offers
from kvpager.errors import BadInput
from tests.stores import WaywardFiles

BLOCKS, BLOCK_TOKENS, BLOCK_BYTES = 8, 16, 8192
KEYS = [b"%d" % number for number in range(BLOCKS)]
ALL = [True] * BLOCKS


@pytest.fixture
def disk(tmp_path):
    """A store with a prompt's blocks, and the file layer below it."""
    files = WaywardFiles()
    with block_store.open(tmp_path / "store", "1MiB", files=files) as store:
        assert store.put_many(KEYS, [bytes(BLOCK_BYTES)] * BLOCKS).all()
        yield store, files


def serve(offers, store, request):
    """Ask, fetch what is offered, tell how long it took; return how many blocks were."""
    offered = offers.offer(request, store.contains_many(KEYS).tolist())
    fetched, began = sum(offered), time.perf_counter()
    if fetched:
        ok = store.get_many(KEYS[:fetched], [bytearray(BLOCK_BYTES) for _ in range(fetched)])
        offers.fetched(request, fetched, time.perf_counter() - began, ok=bool(ok.all()))
    offers.forget(request)
    return fetched


def stepped(offers):
    """All counters and gauges, from the differences that are told."""
    rose, gauges = offers.news()
    assert offers.news() == ({}, {})  # told once
    return dict.fromkeys(COUNTERS, 0) | rose | gauges


def test_a_slow_disk_is_declined_after_a_few_loads(disk):
    store, files = disk
    files.delay_s = 0.05
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=100_000)  # 1.3 ms for all
    fetched = [serve(offers, store, f"request {number}") for number in range(12)]
    assert 0 < sum(fetched) < BLOCKS
    assert not any(fetched[2:])
    said = stepped(offers)
    assert said["gate_decided_decline"] >= 10
    assert said["gate_blocks_fetched"] == sum(fetched)
    assert said["gate_blocks_fetched"] + said["gate_blocks_declined"] == 12 * BLOCKS
    assert said["gate_saved_estimate_seconds"] > 9 * 0.04


def test_a_fast_disk_is_read(disk):
    store, _ = disk
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=1)  # two minutes for all
    fetched = [serve(offers, store, f"request {number}") for number in range(40)]
    assert fetched == [1, *[BLOCKS] * 39]  # one block to measure; none is declined to learn how fast the engine is
    said = stepped(offers)
    assert said["gate_decided_unknown"] == 1
    assert said["gate_decided_fetch"] == 39
    assert said["gate_saved_measured_seconds"] > 39 * 60
    assert said["gate_regret_seconds"] == 0


def test_a_disk_that_recovers_is_read_again(disk):
    store, _ = disk
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=1_000)  # 128 ms for all
    for number in range(4):
        offers.fetched(f"slow {number}", BLOCKS, 10.0, ok=True)
    assert not serve(offers, store, "one")
    assert any(serve(offers, store, f"request {number}") == BLOCKS for number in range(4000))


def test_where_nothing_is_there_the_gate_is_not_asked():
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, 1000)
    before = offers.gate.stats()
    assert offers.offer("no reuse", [False] * BLOCKS) == [False] * BLOCKS
    assert offers.offer("nothing", []) == []
    assert offers.gate.stats() == before
    assert offers.news() == ({}, {})


def test_nothing_is_declined_to_learn_a_speed_that_is_told():
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=100)  # 0.16 s a block
    offers.fetched("earlier", BLOCKS, 0.1 * BLOCKS, ok=True)
    for number in range(300):
        assert offers.offer(f"request {number}", ALL) == ALL
        offers.fetched(f"request {number}", BLOCKS, 0.1 * BLOCKS, ok=True)
    assert offers.gate.stats()["explored_s"] == 0


def test_a_disk_that_fails_is_declined():
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=100)
    for number in range(8):
        offers.fetched(f"fast {number}", BLOCKS, 0.1 * BLOCKS, ok=True)
    assert offers.offer("before", ALL) == ALL
    for number in range(8):
        offers.fetched(f"failed {number}", BLOCKS, 0.1 * BLOCKS, ok=False)
    assert not any(offers.offer("after", ALL))


def test_news_are_what_is_new():
    offers, told = Offers(BLOCK_TOKENS, BLOCK_BYTES, prefill_tokens_per_s=100), Counter()
    for number in range(5):
        offers.offer(f"request {number}", ALL)
        offers.fetched(f"request {number}", BLOCKS, 0.1, ok=True)
        told.update(offers.news()[0])
    said = offers.gate.stats()
    assert told["gate_blocks_fetched"] == said["blocks"]["fetched"]
    assert told["gate_decided_fetch"] == said["decisions"]["fetch"] == 4


def test_a_deadline_cuts_the_tail():
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, 10, deadline_s=0.45)
    for number in range(20):
        offers.fetched(f"request {number}", 1 + number % 3, 0.1 * (1 + number % 3), ok=True)
    assert offers.offer("long", ALL) == [True] * 4 + [False] * 4


@given(
    there=st.lists(st.booleans(), max_size=12),
    speed=st.floats(0.1, 1e9),
    took=st.lists(st.tuples(st.integers(1, 12), st.floats(1e-5, 10), st.booleans()), max_size=6),
)
def test_what_is_offered_is_a_beginning_of_what_is_there(there, speed, took):
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, speed, deadline_s=5.0)
    for number, (blocks, seconds, ok) in enumerate(took):
        offers.fetched(f"earlier {number}", blocks, seconds, ok=ok)
    offered = offers.offer("one", there)
    count = sum(offered)
    assert offered == [True] * count + [False] * (len(there) - count)
    assert all(there[:count])
    said = stepped(offers)
    held = (*there, False).index(False)
    assert said["gate_blocks_fetched"] + said["gate_blocks_declined"] == held
    assert sum(value for name, value in said.items() if name.startswith("gate_decided_")) == bool(held)


def test_a_fetch_of_other_blocks_than_were_decided_is_measured_but_saves_nothing():
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, 1000)
    offers.fetched("first", 1, 0.001, ok=True)
    offers.offer("one", ALL)
    offers.fetched("one", BLOCKS - 1, 0.001, ok=True)  # the engine had no room for all
    assert "gate_saved_measured_seconds" not in offers.news()[1]


def test_everything_told_has_a_meaning(disk):
    offers = Offers(BLOCK_TOKENS, BLOCK_BYTES, 1000)
    serve(offers, disk[0], "one")
    serve(offers, disk[0], "two")
    rose, gauges = offers.news()
    assert rose.keys() <= COUNTERS.keys()
    assert gauges.keys() == GATE_GAUGES.keys()
    assert GAUGES.keys() == STORE_GAUGES.keys() | GATE_GAUGES.keys()
    assert {name for name in COUNTERS if name.startswith("gate_decided_")} == {
        f"gate_decided_{choice}" for choice in offers.gate.stats()["decisions"] if choice != "nothing"
    }


@pytest.mark.parametrize("speed", [0, -1, math.inf, math.nan, np.float64(0)])
def test_a_speed_that_is_none(speed):
    with pytest.raises(BadInput, match="prefill_tokens_per_s"):
        Offers(BLOCK_TOKENS, BLOCK_BYTES, speed)
