"""Plain arithmetic, and its edges."""

import numpy as np
import pytest

from kvpager.analysis import amounts


def test_by_hand():
    assert amounts.total([[1, 2], [3, 4]]).tolist() == [3, 7]
    assert amounts.product([[1, 2], [3, 4]]).tolist() == [2, 12]
    assert amounts.remainder(10, [1, 2]) == 7
    assert amounts.ratio([1, 3], 2).tolist() == [0.5, 1.5]
    assert amounts.inclusive_count(0, 100) == 101
    assert amounts.running_total(72, [8, 7]).tolist() == [72, 80, 87]
    assert amounts.terms([0.5, 2], [4, 3]).tolist() == [2, 6]
    assert amounts.orders_of_magnitude(100) == 2


def test_extremes():
    values = np.array([[3, 9], [2, 8]])
    assert amounts.lowest(values).tolist() == [3, 2]
    assert amounts.highest(values).tolist() == [9, 8]
    assert amounts.spread(values).tolist() == [3, 4]


@pytest.mark.parametrize(("needed", "capacity", "share"), [(4, 8, 0), (8, 8, 0), (16, 8, 0.5), (8, 0, 1)])
def test_what_overflows(needed, capacity, share):
    assert amounts.overflow_share(needed, capacity) == share
