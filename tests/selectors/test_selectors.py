"""Each selector against a slow, obvious rule; the contract all of them keep."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvpager.core import Tick
from kvpager.errors import BadInput
from kvpager.registry import configure
from kvpager.selectors import SELECTORS, View

shapes = st.tuples(st.integers(1, 3), st.integers(1, 12))


def view_of(mass, bound=None, previous=None, score=None):
    nothing = np.zeros(mass.shape, bool)
    return View(Tick(0, 0), bound, mass.astype(np.float32), nothing, nothing if previous is None else previous, None, score)


def random_mass(shape, seed):
    """Mass of the complete blocks; the rest of each row is the open block's."""
    rng = np.random.default_rng(seed)
    whole = rng.dirichlet(np.full(shape[1] + 1, 0.3), shape[0])
    return whole[:, :-1]


@pytest.mark.parametrize("name", sorted(SELECTORS))
@given(shape=shapes, seed=st.integers(0, 1000))
def test_contract(name, shape, seed):
    selector = SELECTORS[name]()
    mass = random_mass(shape, seed)
    mask = selector.select(view_of(mass, np.log(mass + 1e-9).astype(np.float32), score=mass.astype(np.float32)))
    assert mask.shape == shape
    assert mask.dtype == bool
    assert "open block not counted" in selector.describe()
    assert isinstance(selector.residency_free, bool)
    assert selector.needs <= {"mass", "bound", "resident", "query_cosine", "score"}


@given(shape=shapes, seed=st.integers(0, 1000), p=st.sampled_from([0.5, 0.9, 0.95]))
def test_topp_mass_is_the_smallest_set_with_the_open_block_in_the_ranking(shape, seed, p):
    mass = random_mass(shape, seed).astype(np.float32)
    mask = configure(SELECTORS, f"topp_mass:p={p}").select(view_of(mass))
    for row, chosen in zip(mass, mask, strict=True):
        everything = [*row.tolist(), max(1 - float(row.sum()), 0.0)]
        descending = sorted(range(len(everything)), key=lambda i: -everything[i])
        before = [math.fsum(everything[j] for j in descending[:k]) for k in range(len(descending))]
        assume(all(abs(total - p) > 1e-5 for total in before))  # rounding decides nothing
        wanted = {i for i, total in zip(descending, before, strict=True) if total < p} - {len(row)}
        assert set(np.flatnonzero(chosen).tolist()) == wanted


@given(
    shape=shapes,
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.1, 0.34, 1.0]),
    name=st.sampled_from(["topk_mass", "key_bound"]),
)
def test_top_share_takes_the_largest(shape, seed, share, name):
    mass = random_mass(shape, seed)
    mask = configure(SELECTORS, f"{name}:read_fraction={share}").select(view_of(mass, mass.astype(np.float32)))
    count = math.ceil(round(share * shape[1], 9))
    assert (mask.sum(axis=1) == count).all()
    for row, chosen in zip(mass.astype(np.float32), mask, strict=True):
        assert row[chosen].min() >= row[~chosen].max(initial=-1)


def test_of_equal_scores_the_newest_blocks_are_read():
    mask = configure(SELECTORS, "topk_mass:read_fraction=0.5").select(view_of(np.full((1, 4), 0.25)))
    assert mask.tolist() == [[False, False, True, True]]


def test_dense_reads_everything_and_above_uniform_what_exceeds_its_share():
    mass = np.array([[0.5, 0.1, 0.3]])
    assert SELECTORS["dense"]().select(view_of(mass)).all()
    assert SELECTORS["mass_above_uniform"]().select(view_of(mass)).tolist() == [[True, False, True]]


@pytest.mark.parametrize("text", ["topp_mass:p=0", "topp_mass:p=1.2"])
def test_impossible_shares_are_refused(text):
    with pytest.raises(BadInput, match="above 0 and at most 1"):
        configure(SELECTORS, text)


@pytest.mark.parametrize("name", ["topk_mass", "key_bound"])
def test_impossible_read_fractions_are_refused(name):
    mass = np.full((1, 4), 0.2)
    with pytest.raises(BadInput, match="above 0 and at most 1"):
        configure(SELECTORS, f"{name}:read_fraction=1.5").select(view_of(mass, mass.astype(np.float32)))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("topp_mass", "key_bound"), ("key_bound", "record it again"), ("key_mean", "live run"), ("outlier_mean", "live run"),
     ("history", "live run"), ("note_blend", "live run")],
)  # fmt: skip
def test_what_a_selector_lacks_is_said(name, remedy):
    nothing = np.zeros((1, 4), bool)
    with pytest.raises(BadInput, match=remedy):
        SELECTORS[name]().select(View(Tick(0, 0), None, None, nothing, nothing, None))
