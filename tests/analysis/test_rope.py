"""RoPE: published frequencies, and a bound that holds and does not fall to zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.analysis.rope import (
    bound_over_product,
    envelope,
    frequencies,
    frequency,
    num_pairs,
    relative_envelope,
    wavelength_tokens,
)
from kvpager.errors import BadInput


def test_frequencies_fall_from_one():
    found = frequencies(10_000, 128)
    assert found.shape == (64,)
    assert found[[0, 32]].tolist() == pytest.approx([1.0, 0.01], abs=1e-15)
    assert found[63] == pytest.approx(1.155e-4, rel=1e-3)
    assert (np.diff(found) < 0).all()
    assert found.tolist() == frequency(np.arange(num_pairs(128)), 10_000, 128).tolist()
    assert frequency(63, 500_000, 128) == pytest.approx(2.455e-6, rel=1e-3)


def test_the_slowest_pair_turns_within_a_128k_context():
    assert wavelength_tokens(63, 10_000, 128) == pytest.approx(54_410, rel=1e-3)
    assert wavelength_tokens(63, 500_000, 128) > 131_072


@pytest.mark.parametrize("head_dim", [0, -2, 7])
def test_what_has_no_pairs_is_refused(head_dim):
    with pytest.raises(BadInput, match=f"head dimension {head_dim}"):
        frequencies(10_000, head_dim)


def test_envelope_equals_the_slow_sum():
    thetas, distance = frequencies(10_000, 16), 37.0
    slow = [abs(sum(np.exp(1j * distance * theta) for theta in thetas[:j])) for j in range(1, 9)]
    assert envelope(distance, 10_000, 16) == pytest.approx(np.mean(slow))
    assert envelope(0, 10_000, 128) == 32.5


def test_envelope_levels_off_and_rises_again():
    near, far, farther = relative_envelope([100, 10_000, 131_071], 10_000, 128)
    assert far == pytest.approx(0.1187, abs=1e-4)
    assert near > farther > far
    assert relative_envelope(np.arange(1, 20_001), 10_000, 128).min() > 0.03, "never near zero"
    assert relative_envelope(0, 500_000, 128) == 1


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=2, max_size=16), st.integers(0, 200_000))
def test_the_bound_holds_for_any_content(content, distance):
    real, imaginary = zip(*content, strict=True)
    turns = np.exp(1j * distance * frequencies(10_000, 2 * len(content)))
    if abs(((np.array(real) + 1j * np.array(imaginary)) * turns).sum().real) > 1e-9:
        assert bound_over_product(real, imaginary, distance, 10_000) >= 1 - 1e-9
