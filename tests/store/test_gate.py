"""The gate: fetch or compute again, judged against worlds whose times are known."""

import inspect
import itertools
import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.analysis.recompute import pass_flops
from kvpager.errors import BadInput
from kvpager.store.gate import CHOICES, Gate, prefill_rates
from kvpager.store.speed import Speed

TOKENS = 16
BLOCK = 64 << 10
RATE = st.floats(1e6, 1e10)
CALL = st.floats(0, 0.05)
TOKEN = st.floats(1e-6, 1e-2)
PAIR = st.floats(0, 1e-6)
BLOCKS = st.integers(1, 200)
POSITION = st.integers(0, 100_000)


class World:
    """A disk and a processor that take exactly so long."""

    def __init__(self, bytes_per_s, call_s, token_s, pair_s=0.0, pass_s=0.0):
        self.bytes_per_s, self.call_s, self.token_s, self.pair_s, self.pass_s = bytes_per_s, call_s, token_s, pair_s, pass_s

    def fetch_s(self, size):
        return self.call_s + size / self.bytes_per_s if size else 0.0

    def compute_s(self, tokens, position):
        """Token by token, as a pass attends."""
        return sum(self.token_s + self.pair_s * (position + number + 1) for number in range(tokens))

    def teach(self, gate, *sizes):
        """Let a gate see fetches and prefills of several sizes."""
        for blocks in sizes or (1, 64, 4, 16, 32, 1, 64, 8):
            gate.fetched(blocks * BLOCK, self.fetch_s(blocks * BLOCK))
            for position in (0, 640):
                gate.prefilled(blocks * TOKENS, position, self.pass_s + self.compute_s(blocks * TOKENS, position))

    def costs(self, sizes, position):
        """The slow, obvious reference: seconds of each number of leading blocks."""
        left = len(sizes) * TOKENS
        return [
            self.fetch_s(sum(sizes[:count])) + self.compute_s(left - count * TOKENS, position + count * TOKENS)
            for count in range(len(sizes) + 1)
        ]


def told(world, **more):
    """A gate that is told the processor's speed, and has seen the disk's."""
    gate = Gate(TOKENS, (world.token_s, world.pair_s), explore_share=0.0, **more)
    for blocks in (1, 64, 4, 16, 32, 1, 64, 8):
        gate.fetched(blocks * BLOCK, world.fetch_s(blocks * BLOCK))
    return gate


@settings(deadline=None)
@given(rate=RATE, call=CALL, token=TOKEN, pair=PAIR, blocks=BLOCKS, position=POSITION)
def test_what_is_certainly_sooner_is_done(rate, call, token, pair, blocks, position):
    """By a clear margin: never declined if fetching is sooner, never fetched if computing is."""
    world = World(rate, call, token, pair)
    fetch_s = world.fetch_s(blocks * BLOCK)
    compute_s = float(pass_flops(blocks * TOKENS, position, token / 2, 1, 1, pair / 4))
    decision = told(world).decide(blocks, BLOCK, position)
    if fetch_s * 1.15 < compute_s:
        assert (decision.fetch, decision.why) == (blocks, "fetch")
    elif compute_s * 1.15 < fetch_s:
        assert decision.fetch < blocks
    assert decision.compute_all_s == pytest.approx(compute_s)
    assert decision.chosen_s <= min(decision.fetch_all_s, decision.compute_all_s) * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(
    rate=RATE, call=CALL, token=TOKEN, pair=PAIR, position=st.integers(0, 500),
    sizes=st.lists(st.integers(1, 4).map(lambda count: count * BLOCK), min_size=1, max_size=12),
    deadline=st.one_of(st.just(math.inf), st.floats(1e-3, 1.0)),
)  # fmt: skip
def test_the_split_is_the_best_of_all(rate, call, token, pair, position, sizes, deadline):
    """Against the costs of every number of leading blocks, each summed up token by token."""
    world = World(rate, call, token, pair)
    gate = told(world, deadline_s=deadline)
    slope, fixed = gate.stats()["fetch_rates"]
    seen = World(1 / slope, fixed, token, pair)  # what the gate believes of the disk
    costs = seen.costs(sizes, position)
    allowed = [cost for count, cost in enumerate(costs) if seen.fetch_s(sum(sizes[:count])) <= deadline * (1 + 1e-12)]
    decision = gate.decide(len(sizes), sizes, position)
    assert decision.chosen_s == pytest.approx(min(allowed), rel=1e-9)
    assert decision.fetch_bytes == sum(sizes[: decision.fetch])
    assert seen.fetch_s(decision.fetch_bytes) <= deadline * (1 + 1e-9)


@settings(deadline=None)
@given(rate=RATE, call=CALL, token=TOKEN, pair=PAIR, blocks=BLOCKS, position=POSITION)
def test_blocks_of_one_size_are_fetched_all_or_none(rate, call, token, pair, blocks, position):
    """What computing a block costs grows along the prefix, what fetching it costs does not."""
    assert told(World(rate, call, token, pair)).decide(blocks, BLOCK, position).fetch in (0, blocks)


@settings(deadline=None)
@given(rates=st.tuples(RATE, RATE), call=CALL, token=TOKEN, pair=PAIR, blocks=BLOCKS, position=POSITION)
def test_a_faster_disk_is_never_used_less(rates, call, token, pair, blocks, position):
    slow, fast = (World(rate, call, token, pair) for rate in sorted(rates))
    if fast.fetch_s(blocks * BLOCK) * 1.15 < slow.fetch_s(blocks * BLOCK):  # so that what is learned of them is in order, too
        assert told(slow).decide(blocks, BLOCK, position).fetch <= told(fast).decide(blocks, BLOCK, position).fetch


@settings(deadline=None, max_examples=30)
@given(
    token=TOKEN, pair=st.floats(1e-9, 1e-6), fixed=st.floats(0, 0.1),
    tokens=st.integers(16, 1024), position=st.integers(0, 2000), noise=st.integers(0, 9),
)  # fmt: skip
def test_prefill_speed_is_learned(token, pair, fixed, tokens, position, noise):
    """From passes of many lengths and positions, a tenth of them three times too long."""
    law, rng = Speed(3), np.random.default_rng(noise)
    for number in range(80):
        count, before = int(rng.integers(16, 1024)), int(rng.integers(0, 2000))
        pairs = count * before + count * (count + 1) / 2
        law.observe((count, pairs, 1.0), (token * count + pair * pairs + fixed) * (3 if number % 10 == 7 else 1))
    pairs = tokens * position + tokens * (tokens + 1) / 2
    true = token * tokens + pair * pairs + fixed
    assert law.seconds(np.array([[tokens, pairs, 1.0]]))[0] == pytest.approx(true, rel=0.35)


@pytest.mark.parametrize("told_prefill", [True, False])
@pytest.mark.parametrize("factor", [3, 10, 100, 1000])
def test_a_disk_that_slows_down_is_known_after_three_fetches(factor, told_prefill):
    """And only the first of them is a whole one."""
    world = World(1e9, 1e-4, 1e-4)
    gate = told(world) if told_prefill else Gate(TOKENS)
    if not told_prefill:
        world.teach(gate)
    slow, fetches = World(1e9 / factor, 1e-4 * factor, 1e-4), []
    assert slow.fetch_s(64 * BLOCK) > slow.compute_s(64 * TOKENS, 0) or factor < 100
    for _ in range(6):
        decision = gate.decide(64, BLOCK, 0)
        if not decision.fetch:
            break
        fetches.append(decision.fetch)
        gate.fetched(decision.fetch_bytes, slow.fetch_s(decision.fetch_bytes), decision)
    expected = gate.decide(64, BLOCK, 0).fetch_all_s
    assert expected == pytest.approx(slow.fetch_s(64 * BLOCK), rel=0.25)
    if factor >= 100:
        assert fetches[0] == 64
        assert len(fetches) <= 3
        assert sum(fetches[1:]) <= 16


def test_one_slow_fetch_changes_nothing_but_the_next():
    world = World(1e9, 1e-4, 1e-4)
    gate = told(world)
    gate.fetched(64 * BLOCK, 50.0)
    doubted = gate.decide(64, BLOCK, 0)
    assert told(world).decide(64, BLOCK, 0).why == "fetch"
    assert (doubted.fetch, doubted.why) == (8, "explore")
    gate.fetched(doubted.fetch_bytes, world.fetch_s(doubted.fetch_bytes), doubted)
    assert gate.decide(64, BLOCK, 0).why == "fetch"
    gate.fetched(64 * BLOCK, 10 * world.fetch_s(64 * BLOCK))  # slow, but computing takes longer still
    assert gate.decide(64, BLOCK, 0).why == "fetch"


def test_a_disk_that_recovers_is_found_by_exploring_within_its_share():
    """The estimate says decline; now and then a few blocks are fetched all the same, and one good time is believed."""
    slow, fast = World(1e6, 1e-4, 1e-3), World(1e9, 1e-4, 1e-3)
    gate = Gate(TOKENS)
    slow.teach(gate)
    spent = chosen = 0.0
    for _ in range(300):
        decision = gate.decide(64, BLOCK, 0)
        chosen += decision.compute_all_s
        if decision.fetch:
            assert decision.why == "explore"
            spent += decision.chosen_s - decision.compute_all_s
            gate.fetched(decision.fetch_bytes, slow.fetch_s(decision.fetch_bytes), decision)
    explored = gate.stats()["decisions"]["explore"]
    assert explored > 5
    assert spent <= 0.02 * chosen
    assert gate.stats()["explored_s"] == pytest.approx(spent)
    for asked in itertools.count():
        decision, needed = gate.decide(64, BLOCK, 0), asked
        if decision.fetch:
            gate.fetched(decision.fetch_bytes, fast.fetch_s(decision.fetch_bytes), decision)
            break
    assert needed <= 300 / explored + 8, "no later than while the disk was slow"
    assert gate.decide(64, BLOCK, 0).why == "fetch"


def test_a_processor_seen_only_at_little_work_is_tried_at_more():
    """Passes of 16 tokens cost what a pass costs; by them alone, 1,024 tokens would seem too dear to compute for ever."""
    world = World(1e6, 1e-4, 1e-4, pass_s=0.1)
    gate = Gate(TOKENS)
    for _ in range(4):
        gate.prefilled(16, 1024, world.pass_s + world.compute_s(16, 1024))
    whys = []
    for _ in range(400):
        decision = gate.decide(64, BLOCK, 0)
        whys.append(decision.why)
        if decision.fetch:
            gate.fetched(decision.fetch_bytes, world.fetch_s(decision.fetch_bytes), decision)
        tokens = (64 - decision.fetch) * TOKENS + 16
        gate.prefilled(tokens, decision.fetch * TOKENS, world.pass_s + world.compute_s(tokens, 0), decision)
    assert whys[1] == "fetch"
    assert set(whys[-20:]) <= {"decline", "explore"}


def test_nothing_is_fetched_from_a_disk_that_fails():
    """And it is asked again, at a bounded cost, until it serves."""
    world = World(1e9, 1e-4, 1e-4)
    gate = Gate(TOKENS)
    world.teach(gate)
    for _ in range(8):
        gate.fetched(64 * BLOCK, 1e-5, ok=False)
    assert gate.stats()["failed_share"] == 1.0
    assert gate.stats()["fetch_rates"][0] == pytest.approx(1e-9, rel=0.05)  # what fails at once is not fast
    whys = []
    for _ in range(200):
        decision = gate.decide(64, BLOCK, 0)
        whys.append(decision.why)
        if decision.fetch:
            gate.fetched(decision.fetch_bytes, 1.0, decision, ok=False)
    assert set(whys) == {"decline", "explore"}
    assert whys.count("explore") < 50
    while gate.decide(64, BLOCK, 0).why != "explore":
        pass
    gate.fetched(8 * BLOCK, world.fetch_s(8 * BLOCK))
    assert gate.decide(64, BLOCK, 0).why == "fetch"


def test_what_is_not_known_is_learned_in_pieces():
    gate = Gate(TOKENS)
    assert gate.decide(64, BLOCK, 0)[:2] == (64, "unknown")  # no word of the processor yet: as without a gate
    gate.prefilled(1024, 0, 1.0)
    assert gate.decide(64, BLOCK, 0)[:2] == (8, "unknown")
    assert gate.decide(1, BLOCK, 0)[:2] == (1, "unknown")
    assert gate.decide(0, BLOCK, 0)[:2] == (0, "nothing")
    gate.fetched(8 * BLOCK, 1e-3)
    assert gate.decide(64, BLOCK, 0)[:2] == (64, "fetch")


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2000), st.floats(1e-6, 10), st.booleans()), max_size=40))
@settings(deadline=None)
def test_the_same_calls_give_the_same_decisions_whoever_asks(calls):
    """No clock, no chance, and no way to say whose blocks they are."""
    gates = Gate(TOKENS), Gate(TOKENS)
    for blocks, position, seconds, ok in calls:
        first, second = (gate.decide(blocks, BLOCK, position) for gate in gates)
        assert first == second
        for gate, decision in zip(gates, (first, second), strict=True):
            if decision.fetch:
                gate.fetched(decision.fetch_bytes, seconds, decision, ok=ok)
            gate.prefilled(1 + (blocks - decision.fetch) * TOKENS, position, seconds / 2, decision)
    assert gates[0].stats() == gates[1].stats()
    assert set(inspect.signature(Gate.decide).parameters) == {"self", "blocks", "block_bytes", "position"}


@given(st.lists(st.tuples(st.integers(0, 99), st.floats(1e-6, 1)), min_size=1, max_size=40))
@settings(deadline=None)
def test_its_counts_add_up(offers):
    gate = told(World(1e8, 1e-3, 1e-4))
    said = [gate.decide(blocks, BLOCK, 0) for blocks, _ in offers]
    stats = gate.stats()
    assert set(stats["decisions"]) == set(CHOICES)
    assert sum(stats["decisions"].values()) == len(offers)
    assert sum(stats["blocks"].values()) == sum(blocks for blocks, _ in offers)
    assert sum(stats["bytes"].values()) == BLOCK * sum(blocks for blocks, _ in offers)
    assert stats["blocks"]["fetched"] == sum(one.fetch for one in said)
    assert stats["saved_s"]["estimate"] >= 0


def test_savings_and_regret_are_measured():
    gate = told(World(1e9, 0.0, 1e-3))
    fetch = gate.decide(10, BLOCK, 0)
    gate.fetched(fetch.fetch_bytes, 0.06, fetch)  # of 0.16 s
    assert gate.stats()["saved_s"]["measurement"] == pytest.approx(0.1)
    gate.fetched(fetch.fetch_bytes, 0.36, fetch)
    assert gate.stats()["saved_s"]["measurement"] == pytest.approx(-0.1)
    assert gate.stats()["regret_s"] == pytest.approx(0.2)
    gate.fetched(fetch.fetch_bytes, 0.01, fetch, ok=False)  # computed after all
    assert gate.stats()["regret_s"] == pytest.approx(0.21)
    gate = told(World(1e5, 0.0, 1e-3))
    decline = gate.decide(10, BLOCK, 0)
    assert decline.fetch == 0
    gate.prefilled(320, 0, 0.32, decline)  # the blocks are half of that pass
    assert gate.stats()["saved_s"]["measurement"] == pytest.approx(10 * BLOCK / 1e5 - 0.16)


def test_told_speed_is_the_planners_law():
    """And what is measured corrects its pace."""
    rates = prefill_rates(1e12, 135e6, 30, 9, 64)
    gate = Gate(TOKENS, rates)
    gate.fetched(BLOCK, 1e-3)
    expected = pass_flops(64 * TOKENS, 512, 135e6, 30, 9, 64) / 1e12
    assert gate.decide(64, BLOCK, 512).compute_all_s == pytest.approx(expected)
    for _ in range(3):
        gate.prefilled(100, 0, 2 * pass_flops(100, 0, 135e6, 30, 9, 64) / 1e12)
    assert gate.decide(64, BLOCK, 512).compute_all_s == pytest.approx(2 * expected)


def test_bad_input():
    for wrong in ({"block_tokens": 0}, {"block_tokens": 1, "deadline_s": 0}, {"block_tokens": 1, "explore_share": 1.0}):
        with pytest.raises(BadInput, match="gate of blocks"):
            Gate(**wrong)
    for wrong in ((0.0, 1.0), (-1.0, 0.0), (math.nan, 0.0)):
        with pytest.raises(BadInput, match="speed told"):
            Gate(16, wrong)
    gate = Gate(16)
    for wrong in ((-1, 1, 0), (2, [1], 0), (1, -1, 0), (1, 1, -1)):
        with pytest.raises(BadInput, match="from 0 on"):
            gate.decide(*wrong)
    for seconds in (-1.0, math.nan, math.inf):
        with pytest.raises(BadInput, match="no observation"):
            gate.fetched(1, seconds)
        with pytest.raises(BadInput, match="no observation"):
            gate.prefilled(1, 0, seconds)
    gate.fetched(0, 0.1)  # a block of no bytes teaches nothing
    assert gate.stats()["fetch_rates"] == []


def test_several_threads_use_one_gate():
    gate = Gate(TOKENS)

    def work():
        for number in range(100):
            decision = gate.decide(number % 9, BLOCK, 0)
            gate.prefilled(16, 0, 1e-3)
            gate.fetched(BLOCK, 1e-4, decision)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(gate.stats()["decisions"].values()) == 400
