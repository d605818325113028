"""Which block of a prefix tree leaves next, beside the slow and obvious way to find it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.connect.leaves import Leaves


class Obvious:
    """The same, by looking at everything each time."""

    def __init__(self):
        self.used, self.free, self.before, self.clock = {}, set(), {}, 0

    def use(self, key):
        self.clock += 1
        self.used[key] = self.clock

    def victims(self, count, kept):
        used, kept = dict(self.used), set(kept)
        for key in list(kept):
            while (key := self.before.get(key)) is not None:
                kept.add(key)
        chosen = []
        for _ in range(count):
            leaves = [key for key in used if not any(self.before.get(other) == key for other in used)]
            may = [key for key in leaves if key in self.free and key not in kept]
            if not may:
                return None
            chosen.append(min(may, key=used.get))
            del used[chosen[-1]]
        for key in chosen:
            self.drop(key)
        return chosen

    def drop(self, key):
        del self.used[key]
        self.free.discard(key)
        self.before.pop(key, None)


# Prompts over a tree of seven blocks: 0 1 2 3 is one of them, 0 1 4 another, 5 6 a third.
PROMPTS = [[0, 1, 2, 3], [0, 1, 4], [5, 6]]
STEPS = st.tuples(st.sampled_from(["prompt", "touch", "free", "hold", "drop", "evict"]), st.integers(0, 6), st.integers(0, 4))


def name(block):
    return bytes([block])


@given(st.lists(STEPS, max_size=60))
def test_the_fast_choice_is_the_obvious_one(steps):
    fast, slow = Leaves(), Obvious()
    for what, block, count in steps:
        prompt = [name(one) for one in PROMPTS[block % 3]]
        key = name(block)
        if what == "prompt":  # its blocks come, first to last, and each is told what it continues
            for number, one in enumerate(prompt[: count + 1]):
                if number:
                    fast.link(one, prompt[number - 1])
                    slow.before.setdefault(one, prompt[number - 1])
                if one not in slow.used:
                    fast.add(one)
                    slow.use(one)
        elif what == "touch":
            fast.touch(prompt)
            for one in reversed(prompt):
                if one in slow.used:
                    slow.use(one)
        elif key in slow.used and what in ("free", "hold"):
            getattr(fast, what)(key)
            (slow.free.add if what == "free" else slow.free.discard)(key)
        elif key in slow.used and what == "drop":
            fast.discard(key)
            slow.drop(key)
        elif what == "evict":
            kept = [key] if block % 2 else []
            assert fast.victims(count, kept) == slow.victims(count, kept)
        assert len(fast) == len(slow.used)
        assert all(one in fast for one in slow.used)


def filled(prompts):
    leaves = Leaves()
    for prompt in prompts:
        for number, key in enumerate(prompt):
            if number:
                leaves.link(key, prompt[number - 1])
            if key not in leaves:
                leaves.add(key)
                leaves.free(key)
    return leaves


def test_a_prompt_leaves_from_its_end():
    leaves = filled([[b"a", b"b", b"c"]])
    assert leaves.victims(3, []) == [b"c", b"b", b"a"]


def test_a_shared_beginning_outlives_both_ends():
    leaves = filled([[b"a", b"b"], [b"a", b"c"]])
    assert leaves.victims(2, []) == [b"b", b"c"]
    assert leaves.victims(1, []) == [b"a"]


def test_what_the_kept_ones_continue_stays_too():
    leaves = filled([[b"a", b"b"]])
    leaves.link(b"c", b"b")  # is about to come
    assert leaves.victims(1, [b"c"]) is None
    assert leaves.victims(1, []) == [b"b"]


def test_nothing_changes_if_there_are_not_enough():
    leaves = filled([[b"a", b"b", b"c"]])
    leaves.hold(b"a")
    assert leaves.victims(3, []) is None
    leaves.free(b"a")
    assert leaves.victims(3, []) == [b"c", b"b", b"a"]


def test_what_is_held_keeps_those_before_it():
    leaves = filled([[b"a", b"b"]])
    leaves.hold(b"b")
    assert leaves.victims(1, []) is None


def test_a_thousand_prompts_that_never_came_are_forgotten():
    leaves = Leaves()
    for number in range(20_000):
        leaves.link(number.to_bytes(4), (number + 1_000_000).to_bytes(4))
    assert len(leaves._before) < 5_000


def test_a_key_does_not_continue_itself():
    leaves = filled([[b"a"]])
    leaves.link(b"a", b"a")
    assert leaves.victims(1, []) == [b"a"]


@pytest.mark.parametrize("again", [False, True])
def test_clear_takes_everything_out(again):
    leaves = filled([[b"a", b"b"]])
    leaves.clear()
    assert len(leaves) == 0
    assert leaves.victims(1, []) is None
    if again:
        leaves.add(b"a")
        leaves.free(b"a")
        assert leaves.victims(1, []) == [b"a"]
