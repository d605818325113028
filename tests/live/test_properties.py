"""Any sequence of what generation does to a cache: over tiers it equals `DynamicCache`, and nothing leaks (laws 1, 4, 6)."""

import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.families import Pair, adds_up, ends_clean, ids_of, live, tiny_once
from tests.live.test_calls import break_off, padded

MOST_ROWS, MOST_TOKENS = 4, 160

TOKENS = st.one_of(st.just(1), st.integers(1, 40))
PARENTS = st.lists(st.integers(0, MOST_ROWS - 1), min_size=1, max_size=MOST_ROWS)
OPERATION = st.one_of(
    st.tuples(st.just("forward"), TOKENS),
    st.tuples(st.just("crop"), st.integers(0, 45)),
    st.tuples(st.just("select"), PARENTS),
    st.tuples(st.just("reorder"), PARENTS),
    st.tuples(st.just("repeat"), st.integers(1, 2)),
    st.tuples(st.just("break"), st.tuples(TOKENS, st.integers(0, 2), st.sampled_from(["pre", "after"]))),
)
SETTING = st.fixed_dictionaries({
    "policy": st.sampled_from(["lru", "ema", "blend", "random"]),
    "pool": st.sampled_from(["global", "layer", "equal"]),
    "dram": st.sampled_from([0, "10%", "100%"]),
    "lockstep": st.booleans(),
    "prefetcher": st.sampled_from([None, "previous"]),
})  # fmt: skip


def run(family, seed, pads, operations, setting):
    model = tiny_once(family)
    with (
        tempfile.TemporaryDirectory() as folder,
        live(model, folder, context=MOST_TOKENS, rows=MOST_ROWS, hbm="60%", **setting) as opened,
    ):
        pair = Pair(opened)
        rows, tokens = len(pads), max(pads) + 9
        pair.forward(*padded(rows, tokens, pads, seed))
        for number, (name, detail) in enumerate(operations):
            apply(pair, name, detail, seed + number)
            opened.store.pager.check()
        adds_up(opened)
        ends_clean(opened)


def apply(pair, name, detail, seed):
    rows, tokens = pair.mask.shape
    if name == "forward" and tokens + detail <= MOST_TOKENS:
        pair.forward(ids_of(rows, detail, seed))
    elif name == "crop" and not (pair.cropped and pair.has_windows):  # a window keeps its past for one crop, even of nothing
        pair.crop(min(detail, tokens - 1))  # a DynamicCache of nothing has no rows
    elif name == "select":
        pair.rearrange([parent % rows for parent in detail])
    elif name == "reorder":
        parents = [(detail * rows)[row] % rows for row in range(rows)]
        pair.both("reorder_cache", pair.mask.new_tensor(parents))
        pair.mask = pair.mask[parents]
    elif name == "repeat" and rows * detail <= MOST_ROWS:
        pair.both("batch_repeat_interleave", detail)
        pair.mask = pair.mask.repeat_interleave(detail, 0)
    elif name == "break":
        count, at, where = detail
        if tokens + count <= MOST_TOKENS and pair.mask.min() == 1:
            break_off(pair, at, ids_of(rows, count, seed), where)


PROGRAM = {
    "seed": st.integers(0, 1000),
    "pads": st.lists(st.sampled_from([0, 0, 3, 20]), min_size=1, max_size=2),
    "operations": st.lists(OPERATION, max_size=8),
    "setting": SETTING,
}


@settings(max_examples=6)
@given(**PROGRAM)
def test_tiers_equal_a_dynamic_cache(seed, pads, operations, setting):
    run("llama", seed, pads, operations, setting)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "gemma2", "ministral"])
@settings(max_examples=60)
@given(**PROGRAM)
def test_tiers_equal_a_dynamic_cache_many_times(family, seed, pads, operations, setting):
    run(family, seed, pads, operations, setting)
