"""Read sets of fixed size: the sink, the newest, the last step's and the rest, against a slow rule; what replay refuses."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.core import Tick
from kvpager.errors import BadInput
from kvpager.registry import configure
from kvpager.replay.stream import make_stream
from kvpager.selectors import SELECTORS, View
from kvpager.selectors.base import ByKeys, ReadSet, top_count
from kvpager.testing.recordings import synthetic_recording

BY_KEYS = ["key_bound", "key_mean", "outlier_mean"]
FIXED = [*BY_KEYS, "history", "note_blend", "recent_only"]


def view_of(scores, previous=None, score=None, block_size=16):
    nothing = np.zeros(scores.shape, bool)
    return View(Tick(0, 0), scores, None, nothing, nothing if previous is None else previous, None, score, block_size)


def best(scores, among, count):
    """The `count` largest of the numbered scores; of equal ones the newest."""
    return sorted(among, key=lambda block: (scores[block], block), reverse=True)[:count]


def slow_set(scores, previous, *, share, sink, recent, kept, times=1):
    """One KV head's read set (or `times` as many candidates) by the words of `ReadSet` and `ByKeys`."""
    blocks = len(scores)
    count = math.ceil(round(share * blocks, 9))
    chosen = list(range(min(sink, count)))
    newest = [block for block in reversed(range(blocks)) if block not in chosen]
    chosen += newest[: min(recent, count - len(chosen))]
    again = [block for block in range(blocks) if previous[block] and block not in chosen]
    chosen += best(scores, again, min(int(kept * count), count - len(chosen)))
    size = min(times * count, blocks)
    return set(chosen + best(scores, set(range(blocks)) - set(chosen), size - len(chosen)))


settings = st.fixed_dictionaries(
    {
        "share": st.sampled_from([0.01, 0.1, 0.34, 0.5, 1.0]),
        "sink": st.integers(0, 3),
        "recent": st.integers(0, 3),
        "kept": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    }
)


@pytest.mark.parametrize("name", BY_KEYS)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 24)),
    seed=st.integers(0, 1000),
    how=settings,
    rerank=st.sampled_from([0, 2, 3]),
)
def test_read_set_is_what_the_words_say(name, shape, seed, how, rerank):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, shape).astype(np.float32)  # with ties
    exact = rng.normal(size=shape).astype(np.float32)
    previous = rng.random(shape) < 0.3
    selector = SELECTORS[name](
        read_fraction=how["share"], sink=how["sink"], recent=how["recent"], previous=how["kept"], rerank=rerank
    )
    view = view_of(scores, previous)
    for row, before, chosen in zip(scores, previous, selector.select(view), strict=True):
        assert set(np.flatnonzero(chosen).tolist()) == slow_set(row, before, **how)
    candidates = selector.candidates(view)
    for row, before, chosen in zip(scores, previous, candidates, strict=True):
        assert set(np.flatnonzero(chosen).tolist()) == slow_set(row, before, **how, times=max(rerank, 1))
    again = np.where(candidates, exact, -np.inf).astype(np.float32)
    read = selector.select(view._replace(bound=again))
    assert not (read & ~candidates).any()
    for row, before, chosen in zip(again, previous, read, strict=True):
        assert set(np.flatnonzero(chosen).tolist()) == slow_set(row, before, **how)


@pytest.mark.parametrize("name", FIXED)
@given(heads=st.integers(1, 3), blocks=st.integers(1, 40), seed=st.integers(0, 100))
def test_the_read_set_never_exceeds_its_size_and_holds_the_sink(name, heads, blocks, seed):
    rng = np.random.default_rng(seed)
    scores = rng.random((heads, blocks)).astype(np.float32)
    mask = configure(SELECTORS, f"{name}:read_fraction=0.1,sink=1").select(view_of(scores, score=scores))
    assert (mask.sum(axis=1) == math.ceil(round(0.1 * blocks, 9))).all()
    assert mask[:, 0].all()


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 30)), count=st.integers(0, 31), seed=st.integers(0, 1000),
    levels=st.sampled_from([1, 3, 1000]),
)  # fmt: skip
def test_top_count_is_the_stable_sort(shape, count, seed, levels):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, shape).astype(np.float32)
    scores[rng.random(shape) < 0.2] = -np.inf
    mask = top_count(scores, count)
    for row, chosen in zip(scores, mask, strict=True):
        assert set(np.flatnonzero(chosen).tolist()) == set(best(row, range(len(row)), count))


def test_recent_only_is_blind_and_reads_the_end():
    mask = configure(SELECTORS, "recent_only:read_fraction=0.3").select(view_of(np.zeros((2, 10), np.float32)))
    assert np.flatnonzero(mask[1]).tolist() == [0, 8, 9]


def test_history_follows_past_mass():
    past = np.array([[0.1, 0.0, 0.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
    mask = configure(SELECTORS, "history:read_fraction=0.4").select(view_of(past, score=past))
    assert np.flatnonzero(mask[0]).tolist() == [0, 2, 4, 9]


@pytest.mark.parametrize("block_size", [16, 1])
def test_note_blend_weighs_nearness_in_tokens_against_past_mass(block_size):
    """Block 2 drew half the most, block 7 a quarter but is nearer: in short blocks that is no difference in nearness."""
    past = np.array([[9.0, 0.2, 0.1, 0, 0, 0, 0, 0.05, 0, 0]], np.float32)
    selector = configure(SELECTORS, "note_blend:recent=0")
    view = view_of(past, score=past, block_size=block_size)
    ranks = selector.rank(view, past)[0]
    for block in range(1, 10):
        distance = block_size * (9 - block)
        assert ranks[block] == pytest.approx(0.6 / (1 + distance / 100) + 0.4 * past[0, block] / 0.2, rel=1e-5)
    assert (ranks[7] > ranks[2]) == (block_size == 16)
    assert selector.select(view).sum() == 1


@pytest.mark.parametrize("name", FIXED)
def test_settings_are_listed_and_residency_does_not_matter(name):
    selector = SELECTORS[name]()
    assert isinstance(selector, ReadSet)
    assert selector.residency_free
    assert (selector.sink, selector.recent) == ((0, 0) if name == "key_bound" else (1, 1))
    if isinstance(selector, ByKeys):
        assert selector.summary == name


@pytest.mark.parametrize(
    ("text", "part"),
    [("key_mean:sink=-1", "sink = -1"), ("history:recent=1.5", "recent = 1.5"), ("key_bound:previous=2", "previous = 2"),
     ("outlier_mean:rerank=1", "rerank = 1"), ("recent_only:read_fraction=0", "above 0")],
)  # fmt: skip
def test_impossible_settings_are_refused(text, part):
    with pytest.raises(BadInput, match=part):
        configure(SELECTORS, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [("key_mean", "key summary 'key_mean'"), ("outlier_mean", "key summary 'outlier_mean'"), ("history", "only a live run keeps"),
     ("note_blend", "only a live run keeps"), ("key_bound:rerank=3", "exact keys")],
)  # fmt: skip
def test_replay_refuses_what_only_a_live_run_knows(text, why):
    with pytest.raises(BadInput, match=why):
        make_stream(synthetic_recording(num_layers=1, context_tokens=64, steps=4), configure(SELECTORS, text))


@pytest.mark.parametrize("text", ["recent_only", "key_bound:previous=0.5,sink=1,recent=2"])
def test_replay_serves_the_others(text):
    stream = make_stream(synthetic_recording(num_layers=1, context_tokens=640, steps=4), configure(SELECTORS, text))
    assert 0 < stream.read_mass < 1


def test_what_is_read_is_described():
    text = configure(SELECTORS, "outlier_mean:read_fraction=0.05,rerank=3,previous=0.5").describe()
    for part in ("5 %", "outlier and mean", "1 first and 1 newest", "3 times as many", "from the last step"):
        assert part in text
