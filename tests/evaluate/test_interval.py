"""Wilson's interval against values computed by hand elsewhere, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput
from kvpager.evaluate.interval import wilson


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(5, 100, 0.02154, 0.11175), (0, 20, 0.0, 0.16113), (20, 20, 0.83887, 1.0), (1, 3, 0.06149, 0.79234)],
)
def test_known_intervals(count, of, low, high):
    assert wilson(count, of) == pytest.approx((low, high), abs=2e-5)


@given(of=st.integers(0, 500), data=st.data())
def test_it_holds_the_share(of, data):
    count = data.draw(st.integers(0, of))
    low, high = wilson(count, of)
    assert 0 <= low <= (count / of if of else 0) <= high <= 1


@pytest.mark.parametrize(("count", "of"), [(-1, 3), (4, 3)])
def test_impossible_counts_are_refused(count, of):
    with pytest.raises(BadInput, match="impossible"):
        wilson(count, of)
