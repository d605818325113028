"""Each prefetcher that is fast beside one that is slow and plain: the same proposals, in the same order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import logged, small_stream

from kvpager.analysis.rope import relative_envelope
from kvpager.core import UnitTable
from kvpager.errors import BadInput
from kvpager.pool import tie_hash
from kvpager.prefetch import PREFETCHERS
from kvpager.prefetch.envelope import Envelope
from kvpager.prefetch.history import History
from kvpager.prefetch.key_summary import KeySummary
from kvpager.prefetch.previous_layer import PreviousLayer
from kvpager.registry import configure

LAYERS, HEADS = 3, 2
seeds = st.integers(0, 10_000)


def beside(prefetcher, slow, seed):
    """Run `prefetcher`, with `slow` told the same; compare every proposal. Returns how many there were."""
    told = []
    for name in ("on_new", "on_access", "on_mass", "on_bound"):
        fast, plain = getattr(prefetcher, name), getattr(slow, name, lambda *_: None)
        setattr(prefetcher, name, lambda *args, fast=fast, plain=plain: (fast(*args), plain(*args)))
    propose = prefetcher.propose

    def watched(tick, candidates, max_units):
        wanted = propose(tick, candidates, max_units)
        assert wanted.tolist() == slow.propose(tick, candidates.tolist(), max_units)
        told.append(len(wanted))
        return wanted

    prefetcher.propose = watched
    logged(small_stream(seed, 0.4, layers=LAYERS, heads=HEADS), "ema", 24, prefetcher=prefetcher, prefetch_share=0.6)
    return sum(told)


def place(unit):
    """Block, layer and head of a unit."""
    block, rest = divmod(int(unit), LAYERS * HEADS)
    return block, *divmod(rest, HEADS)


class SlowPreviousLayer:
    """Sets of blocks."""

    def __init__(self, union):
        self.union, self.asked, self.mass, self.likeness = union, {}, {}, {}

    def on_access(self, tick, units, asks):
        for head in range(HEADS):
            self.asked[tick.layer, head] = {place(unit)[0] for unit in units if place(unit)[2] == head}
        for head in range(HEADS) if tick.layer else ():
            for other in range(HEADS):
                a, b = self.asked[tick.layer, head], self.asked[tick.layer - 1, other]
                old = self.likeness.get((tick.layer, head, other), 0.0)
                self.likeness[tick.layer, head, other] = old + 0.1 * (len(a & b) / max(len(a | b), 1) - old)

    def on_mass(self, seen):
        self.mass |= {place(unit): float(mass) for unit, mass in zip(seen.units, seen.mass, strict=True)}

    def propose(self, tick, candidates, max_units):
        scored = []
        for unit in candidates if tick.layer < LAYERS - 1 else ():
            block, layer, head = place(unit)
            heads = range(HEADS)
            if not self.union:
                heads = [max(heads, key=lambda other: (self.likeness.get((layer, head, other), 0.0), -other))]
            masses = [self.mass[block, tick.layer, h] for h in heads if block in self.asked[tick.layer, h]]
            if masses:
                tie = int(tie_hash(np.array([unit], np.int32), 0, tick.step)[0])
                scored.append((-max(masses), tie, unit))
        return [unit for _, _, unit in sorted(scored)[:max_units]]


@pytest.mark.parametrize("match", ["best", "union"])
@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_previous_layer(match, seed):
    assert beside(PreviousLayer(match), SlowPreviousLayer(match == "union"), seed)


class SlowKeySummary:
    """One block after another."""

    def __init__(self, scale):
        self.scale, self.score = scale, {}

    def on_bound(self, tick, units, bound):
        for row, values in zip(units.tolist(), bound.astype(np.float64).tolist(), strict=True):
            weights = [np.exp(value) for value in values]
            for unit, value, weight in zip(row, values, weights, strict=True):
                above = [w for w, v, u in zip(weights, values, row, strict=True) if (-v, u) <= (-value, unit)]
                share = weight / sum(weights)
                self.score[unit] = {"share": share, "rank": -len(above), "cover": -sum(above) / sum(weights)}[self.scale]

    def propose(self, tick, candidates, max_units):
        return sorted(candidates, key=lambda unit: -round(self.score.get(unit, -np.inf), 9))[:max_units]


@pytest.mark.parametrize("scale", ["share", "rank", "cover"])
@settings(max_examples=12, deadline=None)
@given(seed=seeds)
def test_key_summary(scale, seed):
    fast, rounded = KeySummary(scale), KeySummary.on_bound

    def on_bound(tick, units, bound):  # sums in another order differ in the last bit
        rounded(fast, tick, units, bound)
        fast._score = np.round(fast._score, 9)

    fast.on_bound = on_bound
    assert beside(fast, SlowKeySummary(scale), seed)


class SlowHistory:
    """The features of each unit from the list of all that happened to it; steps of Newton written out."""

    def __init__(self, alphas=(0.3, 0.05), mass_alpha=0.2, forget=0.02):
        self.alphas, self.mass_alpha, self.forget = alphas, mass_alpha, forget
        self.ticks, self.asked, self.mass, self.born, self.sealed_at_birth = {}, {}, {}, {}, {}
        self.weights, self.curvature = np.array([0.0, 1, 0, 0, 0, 0]), np.eye(6)
        self.labelled, self.offered, self.step = [], {}, -1
        self.prefill = {}

    def attach(self, table):
        self.table = table
        return self

    def on_new(self, tick, units):
        for unit in units.tolist():
            self.born[unit] = self.ticks.get(place(unit)[1], 0)
            self.sealed_at_birth[unit] = bool(self.table.sealed[unit])
            self.asked[unit], self.mass[unit] = [], []

    def on_access(self, tick, units, asks):
        if tick.step != self.step:
            self.step = tick.step
            slope, newest = np.zeros(6), np.zeros((6, 6))
            for x, y in self.labelled:
                chance = 1 / (1 + np.exp(-x @ self.weights))
                slope += (y - chance) * x
                newest += chance * (1 - chance) * np.outer(x, x)
            self.curvature = (1 - self.forget) * self.curvature + newest
            self.weights = self.weights + np.linalg.inv(self.curvature + np.eye(6)) @ slope
            self.labelled = []
        now = set(units.tolist())
        for unit in [unit for unit in self.offered if place(unit)[1] == tick.layer]:
            self.labelled.append((self.offered.pop(unit), float(unit in now)))
        self.ticks[tick.layer] = self.ticks.get(tick.layer, 0) + 1
        for unit in self.asked:
            if place(unit)[1] == tick.layer:
                still_open = not self.sealed_at_birth[unit] and not self.table.sealed[unit]
                self.asked[unit].append("open" if still_open else float(unit in now))

    def on_mass(self, seen):
        read = dict(zip(seen.units.tolist(), seen.mass.astype(float).tolist(), strict=True))
        for unit, known in self.mass.items():
            if place(unit)[1] == seen.tick.layer:
                known.append(read.get(unit))

    def features(self, unit):
        emas = []
        for alpha in self.alphas:
            score = float(not self.sealed_at_birth[unit])
            for bit in self.asked[unit]:
                score = 1.0 if bit == "open" else (1 - alpha) * score + alpha * bit
            emas.append(score)
        mass, seen = 0.0, False
        for value in self.mass[unit]:
            if value is not None:
                mass = self.mass_alpha * value + (1 - self.mass_alpha) * mass if seen else value
                seen = True
            else:
                mass *= 1 - self.mass_alpha
        bits = [bit == 1.0 for bit in self.asked[unit]]
        idle = bits[::-1].index(True) if True in bits else 255
        return np.array([1.0, idle == 0, *emas, np.sqrt(mass), np.log2(1 + idle) / 8])

    def propose(self, tick, candidates, max_units):
        self.offered = {unit: self.features(unit) for unit in candidates}
        scores = {unit: round(float(x @ self.weights), 9) for unit, x in self.offered.items()}
        return sorted(candidates, key=lambda unit: -scores[unit])[:max_units]


@pytest.mark.parametrize("when", ["layer", "step"])
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_history(when, seed):
    fast, slow = History(when=when), SlowHistory()
    reset, features = fast.reset, fast.features
    fast.reset = lambda table, seed: (reset(table, seed), slow.attach(table))
    told = []

    def propose(tick, candidates, max_units):  # by scores rounded as the slow one's
        known = features(candidates)
        fast._offered = candidates, known
        assert known == pytest.approx(np.stack([slow.features(unit) for unit in candidates]))
        assert fast.weights == pytest.approx(slow.weights, rel=1e-6, abs=1e-9)
        told.append(fast.weights)
        return candidates[np.argsort(-np.round(known @ fast.weights, 9), kind="stable")[:max_units]]

    fast.propose = propose
    assert beside(fast, slow, seed)
    assert len({tuple(weights) for weights in told}) > 5, "it learns"


def test_history_learns_which_feature_tells():
    """Units of even number are asked for at every second tick, others never after the first: the old rule fails."""
    prefetcher, table = History(), UnitTable(1, 1, 1, 8)
    units = table.open_many(table.new_sequence(), 20)
    table.seal(units)
    prefetcher.reset(table, 0)
    from kvpager.core import Tick

    prefetcher.on_new(Tick(-1, 0), units)
    for step in range(40):
        asked = units[::2] if step % 2 == 0 else units[:0]
        prefetcher.on_access(Tick(step, 0), asked, np.ones(len(asked), np.int32))
        wanted = prefetcher.propose(Tick(step, 0), units, 10)
    assert step % 2 == 1
    assert sorted(wanted.tolist()) == list(range(0, 20, 2))


def test_the_envelope_is_that_of_the_analysis():
    for base, dim in ((10_000.0, 128), (100_000.0, 64)):
        prefetcher = Envelope(rope_base=base, head_dim=dim)
        prefetcher.reset(UnitTable(1, 1, 4, 8), 0)
        for distances in ([0, 5, 17], [3000, 1, 256]):
            found = prefetcher._nearness(np.array(distances, np.int32))
            assert found == pytest.approx(relative_envelope(distances, base, dim))


def test_the_envelope_is_all_that_differs_from_the_blend():
    near = "rope_weight=0,when=layer"
    runs = [
        logged(small_stream(4, 0.4), "ema", 20, prefetcher=f"{name}:{near}", prefetch_share=0.5)[0].prefetches
        for name in ("blend", "envelope")
    ]
    assert runs[0] == runs[1] != []
    far = logged(small_stream(4, 0.4), "ema", 20, prefetcher="envelope:ema_weight=0,when=layer", prefetch_share=0.5)[0]
    assert far.prefetches != runs[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("envelope:head_dim=7", "head_dim 7 must be even"),
        ("envelope:rope_base=1", "rope_base 1 above 1"),
        ("previous-layer:match=worst", "choose best or union"),
        ("key-summary:scale=odd", "choose share, rank, cover"),
    ],
)
def test_bad_settings_are_refused(text, words):
    with pytest.raises(BadInput, match=words):
        configure(PREFETCHERS, text)
