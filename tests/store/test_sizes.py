"""Places: large enough, not much too large, and not many sizes of them."""

from hypothesis import given
from hypothesis import strategies as st

from kvpager.store.sizes import MOST_BLOCK_BYTES, place_bytes, slab_bytes


@given(st.integers(0, MOST_BLOCK_BYTES))
def test_a_fifth_is_the_most_that_is_wasted_beyond_whole_pages(length):
    size, pages = place_bytes(length), max(1, -(-length // 4096)) * 4096
    assert size >= length
    assert size % 4096 == 0
    assert (size - pages) * 5 <= size
    assert place_bytes(size) == size


def test_there_are_few_sizes():
    sizes = {place_bytes(pages * 4096) for pages in range(1, MOST_BLOCK_BYTES // 4096 + 1)}
    assert len(sizes) == 8 + 4 * 11
    assert {65536, 1 << 20, 5 << 20, MOST_BLOCK_BYTES} <= sizes
    assert max(sizes) == MOST_BLOCK_BYTES


@given(st.integers(0, MOST_BLOCK_BYTES), st.integers(4096, 1 << 34))
def test_a_slab_is_about_as_long_as_asked_and_holds_a_place(length, about):
    size = place_bytes(length)
    found = slab_bytes(size, about)
    assert found >= 8192 + size
    assert found <= max(about, 8192 + size)
    assert (found - 4096) % (4096 + size) == 0
