"""Law 3, parity: a live run's log, replayed, gives the same moves; a prediction from it, the counts of another live run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.toyrun import ToyRun, plain, recording_of, roomy

from kvpager.core import DRAM, NVME, Seen
from kvpager.errors import BadInput, CapacityError, InvariantError
from kvpager.policies import POLICIES, make_policy
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.replay.run import replay_run
from kvpager.traces.run import KINDS

CAUSAL = sorted(name for name in POLICIES if not make_policy(name).needs & {"future", "unread_mass"})
BLIND = sorted(name for name in PREFETCHERS if "bound" not in configure(PREFETCHERS, name).needs)
seeds = st.integers(0, 10_000)
settings_of_a_run = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(CAUSAL),
        "hbm": st.integers(0, 40).map(lambda each: roomy("global", each)),
        "prefetcher": st.sampled_from([None, *BLIND]),
        "dram": st.sampled_from([0, 5, 60]),
    }
)
shapes = st.fixed_dictionaries({"staging": st.sampled_from([1, 3, 50]), "lanes": st.sampled_from([1, 2])})


def test_a_toy_run_does_all_that_a_driver_can():
    """Else the laws below say little."""
    run = [ToyRun(seed, "lru", 30, prefetcher="previous", dram=5, slow=True, faults=True).run() for seed in range(8)]
    kinds = {event.kind for one in run for event in one.events}
    assert kinds == set(KINDS)
    assert any(event.raised for one in run for event in one.events)
    assert any(one.recording.disturbances for one in run)
    assert max(asks.max(initial=0) for one in run for asks in [one.recording.columns["asks"]]) > 1
    counts = [one.tally.counts for one in run]
    for name in ("evictions", "demotions", "dram_drops", "prefetched", "kept", "early_units"):
        assert sum(getattr(count, name) for count in counts) > 0, name


# ── law 1 ────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=15, deadline=None)
@given(seed=seeds, made=settings_of_a_run, shape=shapes)
def test_each_access_is_served_once_and_the_tiers_counters_agree(seed, made, shape):
    run = ToyRun(seed, **made, **shape).run()
    counts, asks = run.tally.counts, [event for event in run.events if event.grant is not None]
    assert sum(counts.served) == counts.accesses == run.recording.columns["asks"].sum()
    assert sum(counts.served[:2]) == counts.block_hits
    for tier in (DRAM, NVME):
        stood = sum(np.count_nonzero(event.grant.tier == tier) for event in asks)
        late = sum(np.isin(event.grant.late, event.units[event.grant.tier == tier]).sum() for event in asks)
        assert run.tiers[tier].read_units.get("demand", 0) == stood - late
    assert sum(sum(tier.read_units.values()) for tier in run.tiers.values()) == counts.loads + counts.prefetched
    assert 0 <= counts.read_mass_in_hbm <= counts.read_mass


# ── law 3, Log ───────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=20, deadline=None)
@given(seed=seeds, made=settings_of_a_run, shape=shapes)
def test_a_log_replays_to_the_same_moves_and_counts(seed, made, shape):
    run = ToyRun(seed, **made, **shape).run()
    again = []
    found = replay_run(run.recording, check=True, sink=again.append)
    assert plain(again) == plain(run.events)
    assert found.document == run.document
    assert found.moves_identical == sum(len(event.moves) for event in run.events) == run.tally.counts.moves


@settings(max_examples=20, deadline=None)
@given(seed=seeds, made=settings_of_a_run, shape=shapes, lockstep=st.booleans(), faults=st.booleans())
def test_so_does_a_log_of_tiers_that_are_slow_busy_full_and_faulty(seed, made, shape, lockstep, faults):
    run = ToyRun(seed, **made, **shape, lockstep=lockstep, slow=True, faults=faults).run()
    again = []
    replay_run(run.recording, check=True, sink=again.append)
    assert plain(again) == plain(run.events)


@pytest.mark.parametrize("pool", ["layer", "equal"])
def test_so_does_a_log_of_other_pools(pool):
    run = ToyRun(3, "blend", roomy(pool), pool, dram=6).run()
    assert replay_run(run.recording, check=True).document == run.document


# ── law 3, Prediction ────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=25, deadline=None)
@given(seed=seeds, first=settings_of_a_run, second=settings_of_a_run, shape=shapes, pool=st.sampled_from(["global", "equal"]))
def test_one_run_predicts_another_exactly(seed, first, second, shape, pool):
    """The run that is predicted is really made, and never recorded."""
    recording = ToyRun(seed, **first, **shape).run().recording
    second = second | {"hbm": roomy(pool) + second["hbm"] - roomy("global")}
    run = ToyRun(seed, **second, pool=pool, **shape).run()
    told = []
    found = replay_run(
        recording, policy=second["policy"], hbm_units=second["hbm"], pool=pool, prefetcher=second["prefetcher"] or "none",
        dram_units=second["dram"], prefetch_bytes_per_tick=run.header.budget.prefetch_bytes_per_tick, sink=told.append,
    )  # fmt: skip
    assert plain(told) == plain(run.events)
    assert found.document == run.document


def test_a_run_that_did_not_wait_predicts_one_that_does():
    free = ToyRun(4, "ema", 40, dram=4, lockstep=False, slow=True).run(6)
    waits = ToyRun(4, "lru", 50).run(6)
    if any(event.raised for event in free.events):
        pytest.fail("choose a seed whose sizes are roomy enough")
    assert replay_run(free.recording, policy="lru", hbm_units=50, dram_units=0).document == waits.document


@settings(max_examples=25, deadline=None)
@given(seed=seeds, policy=st.sampled_from(CAUSAL), each=st.integers(0, 30))
def test_no_policy_has_more_unit_hits_than_belady_given_the_recorded_future(seed, policy, each):
    recording = ToyRun(seed, "lru", roomy("global"), staging=50).run().recording
    best = replay_run(recording, policy="belady", hbm_units=roomy("global", each), check=True).counts
    other = replay_run(recording, policy=policy, hbm_units=roomy("global", each)).counts
    assert other.unit_hits <= best.unit_hits
    assert other.unit_accesses == best.unit_accesses


# ── faults in the log, planted ───────────────────────────────────────────────────────────────────────


def parity_breaks(events, run, *, counted=True):
    with pytest.raises(InvariantError, match=r"call \d+ of the run|the run counted"):
        replay_run(recording_of(events, run.header, run.document if counted else None))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_lacks_a_call_is_caught(kind):
    runs = (ToyRun(seed, "blend", 32, slow=True, faults=True).run() for seed in range(99))
    run = next(run for run in runs if kind in {event.kind for event in run.events})
    at = next(i for i, event in enumerate(run.events) if event.kind == kind)
    parity_breaks(run.events[:at] + run.events[at + 1 :], run)


@pytest.mark.parametrize("kind", ["append", "seal", "admit", "ask", "release", "open_many"])
def test_most_are_caught_by_the_moves_alone(kind):
    """As in the log of a run that was interrupted, and counted nothing."""
    run = ToyRun(12, "blend", 32, dram=5).run(14)
    at = next(i for i, event in enumerate(run.events) if event.kind == kind and (event.moves or kind == "open_many"))
    parity_breaks(run.events[:at] + run.events[at + 1 :], run, counted=False)


def test_a_log_whose_move_was_another_is_caught():
    run = ToyRun(11, "blend", 32).run()
    for change in ({"units": np.array([0], np.int32)}, {"why": "keep"}, {"dst": DRAM}, {"id": 9999}):
        at = next(i for i, event in enumerate(run.events) if event.moves and event.kind == "ask")
        event = run.events[at]
        moves = (event.moves[0]._replace(**change), *event.moves[1:])
        parity_breaks([*run.events[:at], event._replace(moves=moves), *run.events[at + 1 :]], run)


def test_a_log_whose_mass_was_another_is_caught():
    run = ToyRun(11, "ema", 32).run()
    seen = [i for i, event in enumerate(run.events) if event.kind == "ask" and event.seen is not None]
    events = list(run.events)
    for i in seen[:3]:
        events[i] = events[i]._replace(seen=Seen(*events[i].seen[:2], events[i].seen.mass[::-1]))
    parity_breaks(events, run)


def test_counts_that_differ_are_caught():
    run = ToyRun(2, "lru", 32).run()
    wrong = replace(run.recording, counts=run.document | {"evictions": 1_000_000})
    with pytest.raises(InvariantError, match="the run counted evictions = 1000000"):
        replay_run(wrong)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_with_faults_predicts_no_other():
    run = next(run for seed in range(20) if (run := ToyRun(seed, "lru", 40, slow=True, faults=True).run()).recording.disturbances)
    replay_run(run.recording)
    with pytest.raises(BadInput, match="predicts no other run"):
        replay_run(run.recording, policy="ema")


def test_sizes_that_cannot_hold_the_open_units_are_refused():
    with pytest.raises(CapacityError, match="give it at least"):
        replay_run(ToyRun(1, "lru", 40).run().recording, hbm_units=4)


def test_an_interrupted_call_ends_the_log():
    run = ToyRun(6, "lru", 40).run(4)
    told = len(run.events)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.driver.ask(run.demand(run.events[-1].tick)[0], seen=interrupt)
    assert not run.driver.telling
    run.driver.recover()
    assert len(run.events) == told
    assert replay_run(recording_of(run.events, run.header)).moves_identical
