"""What every prefetcher keeps: the candidates it was given, the volume, its own tick, and that it cannot know more than all."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import Scripted, logged, random_masks, small_recording, small_stream

from kvpager.core import Seen, Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies import make_policy
from kvpager.prefetch import PREFETCHERS, Prefetcher
from kvpager.registry import configure
from kvpager.replay.attention import Replay
from kvpager.replay.stream import Setting, make_stream
from kvpager.selectors.topp_mass import TopPMass

seeds = st.integers(0, 10_000)
SETTINGS = ["previous-layer:match=union", "key-summary:scale=share", "key-summary:scale=rank", "history:when=step"]
ALL = [*sorted(PREFETCHERS), *SETTINGS]


class Clairvoyant(Prefetcher):
    """Knows the next tick of the layer ahead."""

    def __init__(self, asks):
        self.ahead = {tuple(now.tick): after.units for now, after in pairwise(asks)}

    def propose(self, tick, candidates, max_units):
        return np.intersect1d(candidates, self.ahead.get(tuple(tick), []))[:max_units].astype(np.int32)


def watch(prefetcher):
    """Note every proposal, and check it against what was offered."""
    prefetcher.told = []
    propose = prefetcher.propose

    def watched(tick, candidates, max_units):
        before = candidates.copy()
        wanted = propose(tick, candidates, max_units)
        assert np.array_equal(before, candidates), "the candidates are the Pager's"
        assert len(wanted) <= max_units
        assert len(np.unique(wanted)) == len(wanted)
        assert np.isin(wanted, candidates).all()
        prefetcher.told.append((tuple(tick), candidates.tolist(), max_units, wanted.tolist()))
        return wanted

    prefetcher.propose = watched
    return prefetcher


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(seed=seeds, granularity=st.sampled_from(["head", "layer"]), clock=st.sampled_from(["layer", "step"]))
def test_proposals_are_candidates_each_once_within_the_volume(name, seed, granularity, clock):
    stream = small_stream(seed, setting=Setting(granularity, clock))
    watched = watch(configure(PREFETCHERS, name))
    logged(stream, "ema", 30 if granularity == "head" else 15, prefetcher=watched, prefetch_share=0.4)
    assert watched.told


@pytest.mark.parametrize("name", ALL)
def test_a_prefetcher_starts_afresh_when_it_is_reset(name):
    prefetcher, stream = configure(PREFETCHERS, name), small_stream(3, 0.4)
    runs = [logged(stream, "ema", 20, prefetcher=prefetcher, prefetch_share=0.4)[0].prefetches for _ in range(2)]
    assert runs[0] == runs[1] != []


@pytest.mark.parametrize("name", ALL)
def test_before_the_first_block_there_is_nothing_to_bring(name):
    prefetcher, tick, none = configure(PREFETCHERS, name), Tick(0, 0), np.empty(0, np.int32)
    prefetcher.reset(UnitTable(2, 2, 4, 64), 0)
    prefetcher.on_new(tick, none)
    prefetcher.on_access(tick, none, none)
    prefetcher.on_mass(Seen(tick, none, np.empty(0, np.float16)))
    prefetcher.on_bound(tick, none.reshape(2, 0), np.empty((2, 0), np.float32))
    assert prefetcher.propose(tick, none, 3).shape == (0,)


# ── nothing later than the tick: not the next step, and not the next layer of this one ─────────────────


def proposals(recording, masks, prefetcher, until):
    """What is proposed up to and including tick `until`."""
    stream = make_stream(recording, Scripted(masks))
    watched = watch(prefetcher(stream))
    logged(stream, "ema", 14, prefetcher=watched, prefetch_share=0.5)
    return [entry for entry in watched.told if entry[0] <= until]


def assert_blind_to_what_follows(prefetcher, seed, until=(7, 1)):
    """Demand, mass and key bounds after tick `until` are all others; what was proposed before is the same."""
    recording, rng = small_recording(seed, layers=3), np.random.default_rng(seed)
    masks = random_masks(rng, recording, 0.35)
    step, layer = until
    other = [mask.copy() for mask in masks]
    mass, bound = recording.mass.copy(), recording.bound.copy()
    for t, later in [(step, slice(layer + 1, None)), *((t, slice(None)) for t in range(step + 1, recording.steps))]:
        other[t][later] = rng.random(other[t][later].shape) < 0.35
        mass[t, later] = rng.random(mass[t, later].shape)
        bound[t, later] = rng.random(bound[t, later].shape) * 8
    told = [
        proposals(recording, masks, prefetcher, until),
        proposals(replace(recording, mass=mass, bound=bound), other, prefetcher, until),
    ]
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=6, deadline=None)
@given(seed=seeds)
def test_no_prefetcher_sees_what_follows_its_tick(name, seed):
    assert assert_blind_to_what_follows(lambda stream: configure(PREFETCHERS, name), seed)


def test_one_that_sees_the_next_layer_is_caught():
    """Planted: the leak inside a step, which a cut between steps does not show."""
    with pytest.raises(AssertionError):
        assert_blind_to_what_follows(lambda stream: Clairvoyant(stream.asks), 1)


# ── law: at equal volume and timing nobody has more hits than who knows the next tick ─────────────────


def hits(stream, prefetcher, share):
    replay = Replay(stream, make_policy("blend"), 60, prefetcher=prefetcher, prefetch_share=share, warmup=6)
    return replay.run().hits


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_no_prefetcher_beats_the_clairvoyant(share):
    """Over several texts: on one, what is brought for later uses may be worth more than what is brought for the next."""
    streams = [make_stream(small_recording(seed, layers=3, context=120, steps=30), TopPMass()) for seed in range(3)]
    best = sum(hits(stream, Clairvoyant(stream.asks), share) for stream in streams)
    for name in [None, *(name for name in ALL if configure(PREFETCHERS, name).when == "layer")]:
        found = sum(hits(stream, name and configure(PREFETCHERS, name), share) for stream in streams)
        assert found <= best, name


# ── what only a recording of attention knows ──────────────────────────────────────────────────────────


def test_a_recording_without_bounds_is_refused():
    stream = make_stream(replace(small_recording(1), bound=None), TopPMass())
    with pytest.raises(BadInput, match="key bounds, which this recording lacks"):
        logged(stream, "ema", 20, prefetcher="key-summary")


def test_bounds_are_those_of_the_complete_blocks_after_the_demand():
    recording = small_recording(5)
    stream, told = make_stream(recording, TopPMass()), []

    class Listener(Prefetcher):
        needs = frozenset({"bound"})

        def on_access(self, tick, units, asks):
            told.append((tuple(tick), "demand"))

        def on_bound(self, tick, units, bound):
            told.append((tuple(tick), "bound"))
            assert (units % 4).tolist() == [[2 * tick.layer] * units.shape[1], [2 * tick.layer + 1] * units.shape[1]]
            assert units[0].tolist() == [4 * block + 2 * tick.layer for block in range(recording.open_block(tick.step))]
            assert np.array_equal(bound, recording.bound[tick.step, tick.layer, :, : units.shape[1]])

    logged(stream, "ema", 20, prefetcher=Listener())
    ticks = [(t, layer) for t in range(recording.steps) for layer in range(2)]
    assert told == [(tick, what) for tick in ticks for what in ("demand", "bound")]
